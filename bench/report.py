"""What every benchmark does with its figures: says on what machine they were taken,
writes them as JSON and draws them as SVG, in bench/results/."""

import json
import math
import os
import platform
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "bench/results"
KI, MI = 1 << 10, 1 << 20
COLORS = ["#1b6ca8", "#0b3d63", "#5aa9e6", "#2e8b57", "#c0392b", "#e67e22", "#8e44ad", "#7f8c8d"]


def machine():
    model = "unknown CPU"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, cwd=ROOT
    ).stdout.strip()
    control = Path("/proc/sys/net/ipv4/tcp_congestion_control")
    return {
        "commit": commit or "unknown",
        "cpu": model,
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "tcp": control.read_text().strip() if control.exists() else "unknown",
        "load_before": os.getloadavg()[0],
    }


def size_text(size):
    for unit, name in ((MI, "MiB"), (KI, "KiB")):
        if size >= unit:
            return f"{size // unit} {name}"
    return f"{size} B"


def save(name, about, figures, picture):
    """bench/results/NAME.json and NAME.svg; `about` is machine() of the start."""
    OUT.mkdir(parents=True, exist_ok=True)
    about = {**about, "load_after": os.getloadavg()[0]}
    result = {"machine": about, **figures}
    (OUT / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
    if picture:
        (OUT / f"{name}.svg").write_text(picture)
    print(f"\n{OUT / name}.json" + (", .svg" if picture else ""))


def escape(text):
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def start_svg(width, height, title):
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="14" y="18">{escape(title)}</text>',
    ]


def plot(parts, box, curves, x_ticks, y_ticks, logarithmic, dashed=()):
    """Curves {name: [(x, y), ...]} in the box (left, top, right, bottom), their names
    right of it. Ticks {value: text}, the least and the greatest are the edges.
    `logarithmic`: ask for x, for y."""
    left, top, right, bottom = box

    def place(value, ticks, logs, low, high):
        scale = math.log2 if logs else float
        first, last = scale(min(ticks)), scale(max(ticks))
        at = low + (scale(value) - first) / ((last - first) or 1) * (high - low)
        return min(max(at, min(low, high)), max(low, high))

    for value, text in y_ticks.items():
        at = place(value, y_ticks, logarithmic[1], bottom, top)
        parts.append(f'<path d="M{left} {at:.1f}H{right}" stroke="#ddd"/>')
        parts.append(f'<text x="{left - 6}" y="{at + 4:.1f}" text-anchor="end">{text}</text>')
    for value, text in x_ticks.items():
        at = place(value, x_ticks, logarithmic[0], left, right)
        parts.append(f'<path d="M{at:.1f} {top}V{bottom}" stroke="#eee"/>')
        parts.append(f'<text x="{at:.1f}" y="{bottom + 18}" text-anchor="middle">{text}</text>')
    for i, (name, points) in enumerate(curves.items()):
        dash = ' stroke-dasharray="5 4"' if name in dashed else ""
        style = f'fill="none" stroke="{COLORS[i % len(COLORS)]}" stroke-width="2"{dash}'
        line = " ".join(
            f"{place(x, x_ticks, logarithmic[0], left, right):.1f},"
            f"{place(y, y_ticks, logarithmic[1], bottom, top):.1f}"
            for x, y in points
        )
        parts.append(f'<polyline points="{line}" {style}/>')
        at = top + 16 + 20 * i
        parts.append(f'<path d="M{right + 15} {at}h24" {style}/>')
        parts.append(f'<text x="{right + 45}" y="{at + 4}">{escape(name)}</text>')


def micros_ticks(values):
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return {10.0**power: f"{10.0**power:g} us" for power in range(low, max(high, low + 1) + 1)}


def time_by_size(title, curves, dashed=()):
    """An SVG of {name: [(bytes, us), ...]}, both axes logarithmic."""
    curves = {name: sorted(points) for name, points in curves.items() if len(points) > 2}
    if not curves:
        return None
    sizes = sorted({size for points in curves.values() for size, _ in points})
    x_ticks = {size: size_text(size) for size in sizes[:: max(len(sizes) // 8, 1)] + sizes[-1:]}
    y_ticks = micros_ticks([us for points in curves.values() for _, us in points])
    parts = start_svg(860, 520, title)
    plot(parts, (70, 30, 670, 470), curves, x_ticks, y_ticks, (True, True), dashed)
    return "\n".join([*parts, "</svg>"]) + "\n"


def bars(title, rows):
    """An SVG of rows (text, value, limit or None, unit): a bar each, in groups of one
    unit the same scale; the limit is a mark across it."""
    height = 40 + 26 * len(rows)
    parts = start_svg(860, height, title)
    most = {}
    for _, value, limit, unit in rows:
        most[unit] = max(most.get(unit, 0), value, limit or 0)
    for i, (text, value, limit, unit) in enumerate(rows):
        at, scale = 34 + 26 * i, 360 / (most[unit] or 1)
        parts.append(f'<text x="330" y="{at + 13}" text-anchor="end">{escape(text)}</text>')
        parts.append(
            f'<rect x="340" y="{at}" width="{value * scale:.1f}" height="18" fill="{COLORS[0]}"/>'
        )
        if limit is not None:
            x = 340 + limit * scale
            parts.append(f'<path d="M{x:.1f} {at - 3}v24" stroke="{COLORS[4]}" stroke-width="2"/>')
        parts.append(f'<text x="710" y="{at + 13}">{value:.3g} {escape(unit)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"
