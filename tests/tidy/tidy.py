#!/usr/bin/env python3
"""The repository checks itself. Prints one line per check and the totals last.

  layers      includes of src/ point one way (ALLOWED below)
  headers     each layer opens with a header that says what it is for
  exports     the library exports exactly abi/exports.txt
  settings    docs/settings.md names every setting of `gpubridge config`
  functions   no function is longer than 70 lines, but for the listed ones,
              which must not grow
  calls       banned calls (strcpy, sprintf, atoi ...), getenv outside
              base/config.c, printf outside tools and tests
  lines       C lines stop at 80 columns; no tabs or trailing blanks
  paths       no absolute path of somebody's machine
  links       files that the documents point to exist
  python      ruff is content

--clang-tidy runs clang-tidy over src/ too (slow).
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SRC = ROOT / "src"

# What each layer may include, besides itself and the public headers.
ALLOWED = {
    "base": set(),
    "codec": {"base"},
    "observe": {"base"},
    "os": {"base"},
    "store": {"base", "os"},
    "device": {"base", "os"},
    "transport": {"base", "os", "device"},
    "comm": {"base", "os", "transport"},
    "bridge": {"base", "os", "device", "transport", "comm"},
    "ccl": {"base", "os", "device", "transport", "comm", "bridge"},
    "plan": {"base", "codec"},
    "policy": {"base", "codec", "plan"},
    "sim": {"base", "codec", "plan", "policy"},
    "control": {"base", "os", "store", "observe"},
    "p2p": {"base", "os", "transport", "comm", "control"},
    "core": {
        "base", "codec", "observe", "os", "store", "device", "transport",
        "comm", "bridge", "ccl", "plan", "policy", "control", "p2p",
    },
    "api": {"base", "core", "device", "observe"},
}  # fmt: skip

FUNCTION_LINES_MAX = 70
# Longer ones, with their length today: they may shrink, not grow.
LONG_FUNCTIONS = {}

BANNED = re.compile(
    r"\b(strcpy|strcat|sprintf|vsprintf|gets|atoi|atol|atof|gethostbyname|"
    r"strtok|tmpnam|mktemp|alloca)\s*\("
)


def c_files(*folders):
    for folder in folders:
        yield from sorted(
            p for p in (ROOT / folder).rglob("*") if p.suffix in (".c", ".h")
        )


def is_test(path):
    return path.name.endswith("_test.c")


def check_layers():
    for path in c_files("src"):
        layer = path.relative_to(SRC).parts[0]
        for number, line in enumerate(path.read_text().splitlines(), 1):
            match = re.match(r'#include "([^"]+)"', line)
            if not match:
                continue
            target = match[1].split("/")[0]
            if target in ("harness", "fakes") and is_test(path):
                continue
            if "/" not in match[1]:
                yield f"{path}:{number}: include \"{match[1]}\" by its layer's path"
            elif target not in ALLOWED:
                yield f"{path}:{number}: unknown layer {target}"
            elif target != layer and target not in ALLOWED[layer] and not (
                is_test(path) and target in ALLOWED["core"]
            ):
                yield f"{path}:{number}: {layer} must not include {target}"
    for layer in sorted(p.name for p in SRC.iterdir() if p.is_dir()):
        if layer not in ALLOWED:
            yield f"src/{layer}: not in tidy.py's table of layers"


def check_headers():
    for layer in sorted(p for p in SRC.iterdir() if p.is_dir()):
        if layer.name == "api":
            continue  # its headers are the installed ones
        opening = re.compile(rf"/\* {layer.name}(/\w+)?: ")
        if not any(opening.match(h.read_text()) for h in layer.rglob("*.h")):
            yield f'src/{layer.name}: no header opens with "/* {layer.name}: ..."'


def exported():
    library = ROOT / "build/lib/libgpubridge.so"
    out = subprocess.run(
        ["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True
    ).stdout
    names = {line.split()[-1].split("@")[0] for line in out.splitlines()}
    return {name for name in names if not name.startswith("GPUBRIDGE_")}


def check_exports():
    listed = set((ROOT / "abi/exports.txt").read_text().split())
    for name in sorted(exported() - listed):
        yield f"{name} is exported, but not in abi/exports.txt"
    for name in sorted(listed - exported()):
        yield f"{name} is in abi/exports.txt, but not exported"


def check_settings():
    out = subprocess.run(
        [ROOT / "build/bin/gpubridge", "config"], capture_output=True, text=True
    ).stdout
    names = re.findall(r"^(GPUBRIDGE_\w+)", out, re.M)
    if len(names) < 10:
        yield "`gpubridge config` lists hardly any setting"
    text = (ROOT / "docs/settings.md").read_text()
    for name in names:
        if f"`{name}`" not in text:
            yield f"docs/settings.md does not mention {name}"
    for name in set(re.findall(r"`(GPUBRIDGE_\w+)`", text)) - set(names):
        yield f"docs/settings.md describes {name}, which is no setting"


def functions(path):
    """(name, first line, length) of each function of a formatted C file."""
    lines = path.read_text().splitlines()
    start = name = None
    for i, line in enumerate(lines):
        if start is None and re.match(r"[a-zA-Z_].*[^;]$", line) and "(" in line:
            match = re.search(r"(\w+)\s*\(", line)
            if not line.startswith(("#", "typedef", "struct", "enum", "extern")):
                start, name = i, match[1]
        if line == "}" and start is not None:
            yield name, start + 1, i - start + 1
            start = None
        elif line.endswith(";") and not line.startswith(" ") and start is not None:
            start = None


def check_functions():
    found = []
    for path in c_files("src", "tools", "python/ext", "tests/harness"):
        if path.name.endswith(".inc.h"):
            continue  # templates: their functions are macros' arguments
        for name, line, length in functions(path):
            found.append((length, name, f"{path.relative_to(ROOT)}:{line}"))
    found.sort(reverse=True)
    print("  longest: " + ", ".join(f"{n} {c}" for c, n, _ in found[:10]))
    for length, name, where in found:
        most = max(LONG_FUNCTIONS.get(name, 0), FUNCTION_LINES_MAX)
        if length > most:
            yield f"{where}: {name} has {length} lines, more than {most}"


def strip_comments(text):
    def blank(match):
        return re.sub(r"[^\n]", " ", match[0])

    return re.sub(r"/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"", blank, text, flags=re.S)


def check_calls():
    for path in c_files("src", "tools", "python/ext", "examples"):
        text = strip_comments(path.read_text())
        for number, line in enumerate(text.splitlines(), 1):
            where = f"{path.relative_to(ROOT)}:{number}"
            if match := BANNED.search(line):
                yield f"{where}: {match[1]} is banned"
            if re.search(r"\bgetenv\s*\(", line) and path != SRC / "base/config.c":
                if "src" in path.parts and not is_test(path):
                    yield f"{where}: getenv outside base/config.c"
            if re.search(r"\b(f?printf|puts)\s*\(", line) and "src" in path.parts:
                if not is_test(path) and path.name not in ("log.c", "fault.c"):
                    yield f"{where}: printing outside tools/"


def check_lines():
    for path in c_files("src", "include", "tools", "python/ext", "tests", "examples", "bench"):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            where = f"{path.relative_to(ROOT)}:{number}"
            if len(line) > 80:
                yield f"{where}: {len(line)} columns"
            if "\t" in line or line != line.rstrip():
                yield f"{where}: tab or trailing blank"


def tracked():
    out = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True
    ).stdout
    return [ROOT / name for name in out.split("\0") if name and (ROOT / name).is_file()]


def check_paths():
    pattern = re.compile(r"(?<![\w.])/(?:work|root|home/\w+)/")
    for path in tracked():
        if path == Path(__file__).resolve():
            continue
        text = path.read_text(errors="replace")
        for number, line in enumerate(text.splitlines(), 1):
            if pattern.search(line):
                yield f"{path.relative_to(ROOT)}:{number}: a path of a machine"


def check_links():
    for path in tracked():
        if path.suffix != ".md":
            continue
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", path.read_text()):
            if "://" not in target and not (path.parent / target).exists():
                yield f"{path.relative_to(ROOT)}: {target} does not exist"


def check_python():
    done = subprocess.run(
        [ROOT / ".venv/bin/ruff", "check", "--no-cache", "python", "tests", "examples", "bench"],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode:
        yield from done.stdout.splitlines()[-40:]


def check_clang_tidy():
    files = [p for p in c_files("src") if p.suffix == ".c" and not is_test(p)]
    done = subprocess.run(
        ["clang-tidy", "-p", ROOT / "build", "--quiet", *files],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    for line in done.stdout.splitlines():
        if "warning:" in line or "error:" in line:
            yield line


CHECKS = {
    "layers": check_layers,
    "headers": check_headers,
    "exports": check_exports,
    "settings": check_settings,
    "functions": check_functions,
    "calls": check_calls,
    "lines": check_lines,
    "paths": check_paths,
    "links": check_links,
    "python": check_python,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clang-tidy", action="store_true")
    checks = dict(CHECKS)
    if parser.parse_args().clang_tidy:
        checks = {"clang-tidy": check_clang_tidy}
    failed = 0
    for name, check in checks.items():
        problems = list(check())
        failed += bool(problems)
        print(f"{'FAIL' if problems else 'ok  '} tidy.{name}")
        for problem in problems[:40]:
            print(f"  {problem}")
    print(f"{len(checks) - failed} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
