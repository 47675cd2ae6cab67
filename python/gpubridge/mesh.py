"""Device meshes that follow the islands, and what of a mesh crosses the bridge."""

import math

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from .session import current

# What FSDP sends along a dimension, by a part of the dimension's name.
_TRAFFIC = {
    "rep": "one all_reduce of the gradient shards a step",
    "shard": "every all_gather of parameters and reduce_scatter of gradients",
}
_OTHER = "every call on it"


def _torch_ranks(session):
    """Rank of torch's default group, by rank of the job."""
    if session.job_ranks is None:
        return list(range(session.topology.world_size))
    return list(session.job_ranks)


def hsdp_mesh(device_type="cpu", dim_names=("replicate", "shard")):
    """A 2-D ``DeviceMesh`` of all ranks: each row lies inside one island.

    Dimension 0 replicates, across the islands; dimension 1 shards, inside one.
    ``fully_shard(model, mesh=hsdp_mesh())`` so gathers parameters inside the
    islands only. The order of the ranks does not matter. Islands of unequal
    size are cut into rows of the largest size that divides them all: 4 + 2
    ranks make three rows of 2, 3 + 1 ranks four rows of 1.

    Every rank of the job calls it; blocks until the mesh's groups are there.
    ValueError for names that are not two; RuntimeError without a job, or when
    the job is not of torch's default group.
    """
    session = current()
    if len(dim_names) != 2 or dim_names[0] == dim_names[1]:
        raise ValueError(
            f"dim_names is {dim_names!r}, but must be two names: of the dimension "
            "that replicates and of the one that shards"
        )
    if session.job_ranks is not None or not dist.is_initialized():
        raise RuntimeError(
            "hsdp_mesh needs the gpubridge job to be torch's default group: a mesh "
            "is made of groups of that one's backend. Use "
            'init_process_group(backend="gpubridge")'
        )
    islands = session.topology.layout.islands
    size = math.gcd(*(len(island.ranks) for island in islands))
    rows = [
        island.ranks[at : at + size]
        for island in islands
        for at in range(0, len(island.ranks), size)
    ]
    return DeviceMesh(device_type, torch.tensor(rows), mesh_dim_names=tuple(dim_names))


def explain_mesh(mesh):
    """Says, one line a dimension, what of `mesh` crosses the bridge.

    Any mesh of the job's ranks, sliced or not; sends nothing. RuntimeError
    without a job, ValueError for a mesh of ranks that are not in it.
    """
    session = current()
    layout = session.topology.layout
    ranks = _torch_ranks(session)
    islands = {t: layout.island_of(j).leader for j, t in enumerate(ranks)}
    strangers = sorted(set(mesh.mesh.flatten().tolist()) - set(islands))
    if strangers:
        raise ValueError(
            f"the mesh has ranks {strangers}, but this job has ranks {ranks}: "
            "explain_mesh tells about meshes of the job's own ranks"
        )
    names = mesh.mesh_dim_names or [f"dimension {d}" for d in range(mesh.ndim)]
    width = max(map(len, names), default=0) + 1
    lines = []
    for dim, name in enumerate(names):
        groups = mesh.mesh.movedim(dim, -1).reshape(-1, mesh.mesh.shape[dim]).tolist()
        crossing = sum(len({islands[rank] for rank in group}) > 1 for group in groups)
        text = _explain(len(groups), len(groups[0]), crossing, name)
        lines.append(f"{name + ':':{width}} {text}")
    return "\n".join(lines)


def _explain(groups, size, crossing, name):
    """One line of :func:`explain_mesh`, without the name."""
    count = f"{groups} group{'' if groups == 1 else 's'} of {size}"
    if size == 1:
        return f"{count}, nothing to send"
    if not crossing:
        where = "each inside one island" if groups > 1 else "inside one island"
        return f"{count}, {where}"
    if crossing < groups:
        where = f"{crossing} of them cross" + ("es" if crossing == 1 else "")
    else:
        where = "all cross" if groups > 1 else "crosses"
    traffic = next((t for part, t in _TRAFFIC.items() if part in name.lower()), _OTHER)
    return f"{count}, {where} the bridge: {traffic}"
