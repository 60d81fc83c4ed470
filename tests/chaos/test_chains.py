"""What a bucket's chains hold, where objects of gateways are gone."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

from tidelog_core.diskless.wal.build import ObjectName, WalSlice, refer_to
from tidelog_core.diskless.wal.epoch_chains import PartitionName
from tidelog_core.diskless.wal.footer import parse_object
from tidelog_core.diskless.wal.keys import wal_key
from tidelog_core.diskless.wal.slice_bytes import foreign_batches
from tidelog_core.metadata.epoch_chains import ChainName

from tests.chaos.chains import read_chains
from tests.support.batches import batch_of
from tests.support.data_objects import build_data_object

CLUSTER = "cluster"
NAME = PartitionName(UUID(int=1), 0)
LEADER, GATEWAY = ChainName(1, UUID(int=7)), ChainName(2, UUID(int=8))


def put(folder: Path, chain: ChainName, sequence: int, data: bytes) -> Path:
    path = folder / wal_key(CLUSTER, chain, sequence)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def put_own(folder: Path, sequence: int, base_offset: int, value: bytes) -> None:
    """Put an object with one record of the leader's own."""
    data = batch_of(value, timestamp_ms=1, base_offset=base_offset, leader_epoch=0)
    name = ObjectName(CLUSTER, LEADER, sequence, max(0, sequence - 1), 0, 0)
    put(folder, LEADER, sequence, build_data_object(name, [WalSlice(*NAME, 0, data)]).data)


def put_foreign(folder: Path, sequence: int, base_offset: int, value: bytes) -> Path:
    """Put an object with a reference, and a gateway's; return the path of the gateway's."""
    data = bytes(foreign_batches(bytearray(batch_of(value, timestamp_ms=1))))
    foreign = WalSlice(*NAME, -1, data, is_foreign=True)
    at = ObjectName(CLUSTER, GATEWAY, sequence, max(0, sequence - 1), 0, 0)
    built = build_data_object(at, [foreign]).data
    (row,) = parse_object(built, key="").slices
    reference = refer_to(
        foreign,
        gateway=GATEWAY,
        sequence=sequence,
        position=row.position,
        leader_epoch=0,
        base_offset=base_offset,
    )
    name = ObjectName(CLUSTER, LEADER, sequence, max(0, sequence - 1), 0, 0)
    put(folder, LEADER, sequence, build_data_object(name, [], references=[reference]).data)
    return put(folder, GATEWAY, sequence, built)


def test_records_on_both_sides_of_an_object_that_is_gone_are_compared(tmp_path: Path) -> None:
    put_own(tmp_path, 0, 0, b"a")
    gone = put_foreign(tmp_path, 1, 1, b"b")
    put_foreign(tmp_path, 2, 2, b"c")
    put_own(tmp_path, 3, 3, b"d")
    log = read_chains(tmp_path, CLUSTER)[NAME]
    assert [batch.values for batch in log.batches] == [("a",), ("b",), ("c",), ("d",)]
    assert (log.problem, log.gone) == ("", ())
    gone.unlink()
    log = read_chains(tmp_path, CLUSTER)[NAME]
    assert [batch.values for batch in log.batches] == [("a",), ("c",), ("d",)]
    assert (log.problem, log.gone) == ("", ((1, 2),))
