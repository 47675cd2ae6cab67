"""What a job looks like: islands, leaders, bridge. All of it is immutable."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from .probing import Probe


class SplitTestWarning(UserWarning):
    """This job's ranks are relabelled into two islands, for tests only."""


def _reports(info):
    """What the island leaders found to join the islands by over RDMA, as dicts;
    empty where the bridge was named, and nobody looked."""
    peers = info["peers"]
    return tuple(
        {
            "rank": leader,
            "hostname": peers[leader]["hostname"],
            "usable": bool(rdma["usable"]),
            **{k: rdma[k] for k in ("reason", "device", "port", "link_layer", "address")},
        }
        for leader in (island["leader"] for island in info["islands"])
        if (rdma := peers[leader]["rdma"])["asked"]
    )


@dataclass(frozen=True)
class Island:
    """All ranks of one label. ``leader`` is its lowest rank."""

    vendor: str
    ranks: tuple
    leader: int


@dataclass(frozen=True)
class Layout:
    """Who is in which island. ``islands`` are ordered by leader."""

    vendors: tuple  # label by rank
    islands: tuple

    @classmethod
    def of(cls, vendors) -> "Layout":
        """The layout of ranks with these labels. ValueError without any."""
        if not vendors:
            raise ValueError("a layout has at least one rank")
        ranks = {}
        for rank, vendor in enumerate(vendors):
            ranks.setdefault(vendor, []).append(rank)
        islands = (Island(v, tuple(r), r[0]) for v, r in ranks.items())
        return cls(tuple(vendors), tuple(islands))

    @property
    def world_size(self) -> int:
        return len(self.vendors)

    @property
    def bridge_ranks(self) -> tuple:
        """The leaders, ascending."""
        return tuple(island.leader for island in self.islands)

    @property
    def needs_bridge(self) -> bool:
        return len(self.islands) > 1

    def island_of(self, rank: int) -> Island:
        for island in self.islands:
            if rank in island.ranks:
                return island
        raise ValueError(f"rank {rank} is not in [0, {self.world_size})")


@dataclass(frozen=True)
class PeerInfo:
    """What one rank published about itself."""

    vendor: str
    detected_vendor: str
    hostname: str
    facts: Mapping[str, str] = field(repr=False)

    @property
    def torch_version(self) -> str:
        return self.facts.get("torch_version", "unknown")

    @property
    def probe(self) -> Probe | None:
        text = self.facts.get("probe")
        return Probe.from_dict(json.loads(text)) if text else None


@dataclass(frozen=True)
class Topology:
    """The job as this rank sees it; see the README for each attribute."""

    rank: int
    world_size: int
    vendor: str
    detected_vendor: str
    run_kind: str
    split_test: str | None
    simulated: bool
    layout: Layout
    peers: tuple
    bridge_name: str
    selection: Mapping[str, Any]
    policy_name: str
    timeout: Any  # datetime.timedelta
    device: Any = None  # torch.device, None without torch
    links: tuple = ()  # the ranks of each link between the islands, one an island
    parts: Any = field(default=None, repr=False)  # custom policy and bridge

    @property
    def island(self) -> Island:
        return self.layout.island_of(self.rank)

    @property
    def is_leader(self) -> bool:
        return self.island.leader == self.rank

    @property
    def link(self) -> int | None:
        """The number of the link that this rank holds, None without one."""
        return next((j for j, ranks in enumerate(self.links) if self.rank in ranks), None)

    @property
    def vendor_map(self) -> dict:
        """Label of each rank."""
        return dict(enumerate(self.layout.vendors))

    @property
    def gloo_free(self) -> bool:
        """The job did not ask for Gloo: it has no Gloo group or thread."""
        return self.bridge_name != "gloo" and self.policy_name != "flat-gloo"

    @property
    def policy(self):
        """The custom policy object; None for one of the library's own."""
        return self.parts.policy if self.parts else None

    @property
    def policy_settings(self) -> dict:
        """The agreed settings of the custom policy."""
        return self.parts.settings if self.parts else {}

    @property
    def transport(self):
        """The custom bridge's class, on every rank; None for the library's."""
        return self.parts.transport_class if self.parts else None

    @property
    def bridge(self):
        """This rank's custom bridge object; None on other ranks, and for one of
        the library's own."""
        return self.parts.links.get(0) if self.parts else None

    @property
    def bridge_group(self):
        """The custom bridge's torch group, if it has one (``gloo`` has)."""
        return getattr(self.bridge, "process_group", None)

    @cached_property
    def island_group(self):
        """This island's ranks as a torch process group, for custom policies:
        they may call it, which they may not the default group.

        Made when it is first asked for, which every rank of the island does at
        the same time (in ``setup``); blocks until they have.
        """
        from .process_group import GpubridgeProcessGroup
        from .session import current

        group = current().open_group(list(self.island.ranks), self.timeout)
        return GpubridgeProcessGroup(group, None, self.timeout)

    @classmethod
    def from_info(cls, info, timeout, device, parts=None):
        """From the dict that the C library gives."""
        islands = tuple(
            Island(i["label"], tuple(i["ranks"]), i["leader"])
            for i in info["islands"]
        )
        peers = tuple(
            PeerInfo(p["vendor"], p["detected_vendor"], p["hostname"], p["facts"])
            for p in info["peers"]
        )
        return cls(
            rank=info["rank"],
            world_size=info["world_size"],
            vendor=info["vendor"],
            detected_vendor=info["detected_vendor"],
            run_kind=info["run_kind"],
            split_test=info["split_test"] or None,
            simulated=bool(info["simulated"]),
            layout=Layout(tuple(p.vendor for p in peers), islands),
            peers=peers,
            bridge_name=info["bridge"],
            selection={
                "requested": info["bridge_requested"],
                "outcome": info["bridge"],
                "reason": info["bridge_reason"],
                "reports": _reports(info),
            },
            policy_name=info["policy"],
            timeout=timeout,
            device=device,
            links=tuple(zip(*(i["holders"][: info["links"]] for i in info["islands"]), strict=True)),
            parts=parts,
        )
