"""Registers the backend name "gpubridge" with torch.distributed."""

import importlib.metadata
import importlib.util
import re
import sys

_registered = False


def register():
    """Makes ``backend="gpubridge"`` known. Idempotent; imports torch.

    Also the entry point by which torch >= 2.14 finds the backend without an
    import of this package.
    """
    global _registered
    if _registered:
        return
    import torch.distributed as dist

    if not dist.is_available():
        return
    if not hasattr(dist.Backend, "GPUBRIDGE"):
        from .process_group import create_process_group

        dist.Backend.register_backend(
            "gpubridge",
            create_process_group,
            extended_api=True,
            devices=["cpu", "cuda"],
        )
    _registered = True


def _torch_finds_us_by_itself():
    """Whether the installed torch looks backends up by entry point (2.14 on).

    Asked without importing torch, so its version is all there is to go by.
    """
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return False
    match = re.match(r"(\d+)\.(\d+)", version)
    return bool(match) and (int(match[1]), int(match[2])) >= (2, 14)


def register_if_needed():
    """What ``import gpubridge`` does: registers when torch is here and would
    not find the name by itself. Without torch it does nothing."""
    if sys.modules.get("torch") is not None:
        register()
    elif importlib.util.find_spec("torch") and not _torch_finds_us_by_itself():
        register()
