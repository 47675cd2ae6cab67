"""The bridge ``ucx`` on the command line: build (a no-op) and info."""

import sys

from ._bridge_command import main

if __name__ == "__main__":
    sys.exit(main("ucx", "GPUBRIDGE_UCX_", available=False))
