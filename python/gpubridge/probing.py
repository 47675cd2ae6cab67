"""What this process's PyTorch can do. Never raises, works before ``init``."""

from dataclasses import asdict, dataclass, fields


@dataclass(frozen=True)
class Probe:
    """Each field has the default given here when its check failed; the failure
    is then in ``errors`` as ``"<check>: <error type>: <text>"``."""

    build_vendor: str | None = None
    torch_version: str = "unknown"
    cuda_version: str | None = None
    hip_version: str | None = None
    gpu_count: int = 0
    nccl_available: bool = False
    gloo_available: bool = False
    errors: tuple = ()

    def to_dict(self) -> dict:
        """Plain data, fit for JSON."""
        values = asdict(self)
        values["errors"] = list(self.errors)
        return values

    @classmethod
    def from_dict(cls, values: dict) -> "Probe":
        known = {f.name for f in fields(cls)}
        kept = {k: v for k, v in values.items() if k in known}
        kept["errors"] = tuple(kept.get("errors", ()))
        return cls(**kept)


def probe() -> Probe:
    """Checks the build, the visible GPUs and the native libraries."""
    errors = []

    def check(name, call, default):
        try:
            return call()
        except Exception as error:  # noqa: BLE001 - whatever a broken build raises
            errors.append(f"{name}: {type(error).__name__}: {error}")
            return default

    def load():
        import torch

        return torch

    torch = check("import torch", load, None)
    if torch is None:
        return Probe(errors=tuple(errors))

    def nccl_available():
        return bool(torch.distributed.is_nccl_available())

    def gloo_available():
        return bool(torch.distributed.is_gloo_available())

    version = check("torch.__version__", lambda: str(torch.__version__), "unknown")
    cuda = check("torch.version.cuda", lambda: torch.version.cuda, None)
    hip = check("torch.version.hip", lambda: torch.version.hip, None)
    count = check("torch.cuda.device_count", torch.cuda.device_count, 0)
    nccl = check("dist.is_nccl_available", nccl_available, False)
    gloo = check("dist.is_gloo_available", gloo_available, False)
    vendor = "amd" if hip else "nvidia" if cuda else None
    return Probe(vendor, version, cuda, hip, count, nccl, gloo, tuple(errors))
