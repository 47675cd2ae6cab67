#!/usr/bin/env python3
"""What issuing a call on a GPU costs the host, on fakes of the vendors' libraries.

    bench/gpu_issue.py

An all_reduce of 4 KiB, bridged (one fake NVIDIA and one fake AMD rank) and inside one
island (two fake NVIDIA ranks). Of the time in the call, what the vendor's calls cost
is taken off: a bridged call may take 15 us more than they, one that is not bridged 3 us
more than the library's own. Fakes are not GPUs: their calls cost what they cost here.
Writes bench/results/gpu_issue.json and .svg.
"""

import json
import os
import subprocess
from pathlib import Path

import report

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build-release"
FAKES = BUILD / "lib/fakes"


def measure(islands):
    """The line of JSON that rank 0 prints."""
    env = {
        **os.environ,
        "GPUBRIDGE_CUDA_LIB": str(FAKES / "cuda/libcuda.so.1"),
        "GPUBRIDGE_NCCL_LIB": str(FAKES / "cuda/libnccl.so.2"),
        "GPUBRIDGE_RCCL_LIB": str(FAKES / "hip/librccl.so.1"),
        "GPUBRIDGE_NVRTC_LIB": str(FAKES / "cuda/libnvrtc.so.13"),
        "GPUBRIDGE_HIPRTC_LIB": str(FAKES / "hip/libhiprtc.so.6"),
        "GPUBRIDGE_CACHE_DIR": str(FAKES / "cache"),
        "FAKE_GPU_CHECKS": "0",
    }
    done = subprocess.run(
        [BUILD / "bin/gpubridge", "run", "--islands", islands, "--", BUILD / "bin/gpu_bench"],
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
    )
    lines = [line for line in done.stdout.splitlines() if "issue_us" in line]
    if done.returncode or not lines:
        raise SystemExit(done.stdout + done.stderr)
    return json.loads(lines[0][lines[0].index("{") :])


def main():
    about = report.machine()
    bridged, alone = measure("nvidia:1,amd:1"), measure("nvidia:2")
    own = bridged["issue_us"] - bridged["calls_us"]
    more = alone["issue_us"] - alone["native_us"]
    print(
        f"bridged: {bridged['issue_us']:.1f} us with {bridged['calls']:.0f} vendor calls, "
        f"which alone take {bridged['calls_us']:.1f} us: {own:.1f} us of our own, must be 15"
    )
    print(
        f"one island: {alone['issue_us']:.1f} us, the library alone "
        f"{alone['native_us']:.1f} us: {more:.1f} us more, must be 3"
    )
    bars = [("bridged, our own", own, 15, "us"), ("one island, more than native", more, 3, "us")]
    found = {"bridged": bridged, "alone": alone, "own_us": own, "more_us": more}
    report.save(
        "gpu_issue", about, found, report.bars("host time of an all_reduce on fake GPUs", bars)
    )


if __name__ == "__main__":
    main()
