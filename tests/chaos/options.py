"""What a run is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.plan import FaultKind

# Small segments, so that a minute has rolls, uploads, evictions and reads from the tier.
_TOPIC_CONFIGS = {
    "segment.bytes": "65536",
    "local.retention.bytes": "131072",
    "retention.ms": "-1",
}
# Nodes lose their disks all the time: what is tiered and what is not has to change often too.
_TOPIC_CONFIGS_DISKLESS = {
    "diskless.enable": "true",
    "segment.bytes": "16384",
    "local.retention.bytes": "32768",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChaosOptions:
    """What a run is made of."""

    directory: Path  # everything of the run; must not exist, or be empty
    seed: int
    seconds: float = 0.0  # of faults
    rounds: int = 0  # or so many faults of every kind, however long they take
    writes_min: int = 0  # acknowledged ones, before the clients may end
    transactions_min: int = 0  # committed ones
    node_count: int = 3
    replication_factor: int = 1
    is_diskless: bool = False  # every topic, at least to begin with
    is_converting: bool = False  # topics become diskless and replicated again, all the time
    has_gateways: bool = False  # all clients are in the zone of one node, and write through it
    partition_count: int = 3  # of each of the two topics to begin with
    kinds: tuple[FaultKind, ...] | None = None  # None: all that such a cluster must stand
    dynamodb_url: str | None = None  # None: SQLite
    s3_url: str | None = None  # of a new server; None: a folder
    lease_s: float = 2.0
    rate_per_s: float = 60.0  # records of one producer
    producer_count: int = 3
    node_config: Mapping[str, str] = field(default_factory=dict)
    is_sabotage: bool = False  # lose what nobody else has, to see that the checker finds it

    @property
    def topic_configs(self) -> dict[str, str]:
        """What every topic of the run is made with."""
        in_sync = min(2, self.replication_factor)
        diskless = _TOPIC_CONFIGS_DISKLESS if self.is_diskless else {}
        if self.is_converting:
            begin = "true" if self.is_diskless else "false"
            diskless = {**_TOPIC_CONFIGS_DISKLESS, "diskless.enable": begin}
        return {**_TOPIC_CONFIGS, "min.insync.replicas": str(in_sync), **diskless}

    @property
    def is_acks_one_kept(self) -> bool:
        """Whether no record may be lost that one replica has acknowledged."""
        is_always_diskless = self.is_diskless and not self.is_converting
        return is_always_diskless or self.replication_factor == 1

    @property
    def title(self) -> str:
        """The run in a line, with the seed that makes it again."""
        store = "SQLite" if self.dynamodb_url is None else "DynamoDB"
        replicas = f"replication factor {self.replication_factor}"
        if self.is_diskless:
            replicas = f"diskless, {replicas}"
        if self.is_converting:
            replicas = f"converted, {replicas}"
        if self.has_gateways:
            replicas += ", gateways"
        if self.s3_url is not None:
            store += ", S3"
        length = f"{self.rounds} rounds" if self.rounds else f"{self.seconds:g} s"
        return f"chaos: seed {self.seed}, {length}, {self.node_count} nodes, {replicas}, {store}"
