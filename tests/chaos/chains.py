"""What the chains of diskless topics hold after a run, from the bucket's folder alone."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from pathlib import Path

from tidelog_core.diskless.wal.epoch_chains import PartitionName
from tidelog_core.diskless.wal.footer import WalFooter, parse_object
from tidelog_core.diskless.wal.keys import parse_wal_key, wal_key
from tidelog_core.diskless.wal.slice_bytes import placed_batches
from tidelog_core.metadata.epoch_chains import ChainName
from tidelog_core.model import NO_LEADER_EPOCH
from tidelog_core.records.batch import parse_header

from tests.chaos.stored import StoredLog, parse_log
from tests.support.chain_model.survey import partition_tails

HOLDER = "the chains"


def read_chains(objects_dir: Path, cluster_id: str) -> dict[PartitionName, StoredLog]:
    """Return the committed batches of each partition that are in chains, as one log.

    Every object is checked byte for byte: raises ``CorruptObject``. Batches of gateways have the
    offsets and the epoch of their references. Objects of gateways may be gone, since they are
    collected once the tier has their records: the log says which offsets it lacks because of that.
    """
    footers: dict[ChainName, list[WalFooter]] = defaultdict(list)
    for path in sorted((objects_dir / cluster_id / "wal").rglob("*.wal")):
        key = str(path.relative_to(objects_dir))
        name = parse_wal_key(key)
        assert name is not None, key
        footers[name.chain].append(parse_object(path.read_bytes(), key=key))
    logs = {}
    for partition, tail in partition_tails(footers.values()).items():
        content = b""
        gone: list[tuple[int, int]] = []
        for one in tail:
            path = objects_dir / wal_key(cluster_id, one.chain, one.sequence)
            if not path.exists():
                gone.append((one.base_offset, one.end_offset))
                continue
            data: bytes | bytearray = path.read_bytes()[
                one.position : one.position + one.size_bytes
            ]
            if parse_header(data).partition_leader_epoch == NO_LEADER_EPOCH:
                epoch, key = one.leader_epoch, str(path)
                data = placed_batches(
                    data, one.base_offset, key=key, position=one.position, leader_epoch=epoch
                )
            content += data
        logs[partition] = replace(parse_log(HOLDER, content), gone=tuple(gone))
    return logs
