"""The bridge ``verbs`` on the command line: build (a no-op) and info."""

import sys

from ._bridge_command import main

if __name__ == "__main__":
    sys.exit(main("verbs", "GPUBRIDGE_VERBS_", available=True))
