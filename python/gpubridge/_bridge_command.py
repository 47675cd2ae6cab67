"""``python -m gpubridge.multitcp|verbs|ucx build|info``: what these commands say.

The bridges are part of the C library inside this package, so there is nothing to
build and no half-built file that a killed build could leave behind.
"""

import argparse

from . import _core


def main(name, setting_prefix, available):
    """Runs the command of the bridge `name`; returns an exit code."""
    parser = argparse.ArgumentParser(prog=f"python -m gpubridge.{name}")
    parser.add_argument("action", choices=["build", "info"])
    action = parser.parse_args().action
    where = f"gpubridge {_core.version()} ({_core.__file__})"
    if not available:
        print(f"{name}: not part of {where} yet. Use the bridge auto or tcp")
        return 1
    if action == "build":
        print(f"{name}: nothing to build, the library is inside the package: {where}")
        return 0
    print(f"{name}: inside {where}")
    for setting in _core.settings():
        if setting["name"].startswith(setting_prefix):
            print(f"  {setting['name']} = {setting['value'] or 'unset'}: {setting['help']}")
    return 0
