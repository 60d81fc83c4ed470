"""The requests about a chain's objects, between a node and its WAL worker.

    wal-build     object's name, files of its slices, rows   -> its header; the bytes are kept, and
                                                             the committed objects that the name
                                                             tells of are forgotten
    wal-build-put as wal-build, time limit                   -> its header, as an event, and then
                                                             the outcome of its first PUT, which
                                                             begins once the event is sent
    wal-put       chain, sequence, time limit                -> outcome of one PUT of the bytes
    wal-drop      chain, sequence                            forgets the objects below the sequence
    wal-store     as wal-build, time limit                   -> its header, outcome of one PUT;
                                                             nothing is kept
    wal-index     chain, its end, the first object kept,     writes checkpoints of what is between
                  producers of partitions

A request that is repeated is harmless: an object that is kept is not built again.

**Why the first PUT needs no request.** Nothing is decided between a build and the first PUT: the
owner has taken the sequence, and puts the object as it is built. An object that is dropped while
it is built is not put. The owner's chain may end at any moment, and the first PUT begin afterwards;
so may the answer to one that is in flight come afterwards. Where a seal is, no PUT does anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from uuid import UUID

from tidelog_core.diskless.wal.build import ForeignSlice, ObjectName, Snapshot
from tidelog_core.diskless.wal.rows import (
    BatchRow,
    EpochRow,
    RowTable,
    SliceRow,
    WalSection,
    pack_rows,
)
from tidelog_core.errors import StorageError, TierUnavailable
from tidelog_core.metadata.epoch_chains import ChainName

Fields = dict[str, Any]


class WalBuildFailed(StorageError):
    """The files do not have the batches that the object is to be built from."""

    hint = "if it lasts, look in the node's log for a disk that has failed"


class WalNotBuilt(TierUnavailable):
    """The worker does not keep this object: it has been started since. Build it again."""


class WalFull(TierUnavailable):
    """The worker keeps as many bytes of objects as it may. Try again after a commit."""


class FileRange(NamedTuple):
    """Bytes ``[start, end)`` of a segment file."""

    path: str
    start: int
    end: int


class SliceFiles(NamedTuple):
    """Offsets ``[base_offset, end_offset)`` of a partition, and the files that have them.

    A gateway's slice begins at -1 in epoch -1, and ends at the number of its offsets.
    """

    topic_id: UUID
    partition: int
    leader_epoch: int
    base_offset: int
    end_offset: int
    ranges: tuple[FileRange, ...]  # in order
    is_foreign: bool = False

    @property
    def size_bytes(self) -> int:
        """The bytes of the ranges."""
        return sum(one.end - one.start for one in self.ranges)


@dataclass(frozen=True, slots=True)
class WalBuildRequest:
    """Build an object from segment files and keep it, and forget the chain's committed objects."""

    name: ObjectName
    slices: tuple[SliceFiles, ...]
    epochs: tuple[EpochRow, ...] = ()
    references: tuple[ForeignSlice, ...] = ()


@dataclass(frozen=True, slots=True)
class WalBuildPutRequest:
    """Build an object and keep it, and put it with one request as soon as it is built."""

    build: WalBuildRequest
    timeout_s: float


@dataclass(frozen=True, slots=True)
class WalPutRequest:
    """Put a kept object with one request."""

    cluster_id: str
    chain: ChainName
    sequence: int
    timeout_s: float


@dataclass(frozen=True, slots=True)
class WalDropRequest:
    """Forget the kept objects of the chain below the sequence, and end their PUTs."""

    chain: ChainName
    below: int


@dataclass(frozen=True, slots=True)
class WalStoreRequest:
    """Build an object where the store keeps it, by one attempt."""

    build: WalBuildRequest
    timeout_s: float


@dataclass(frozen=True, slots=True)
class WalIndexRequest:
    """Write checkpoints of the chain's objects below its committed end, and delete old ones."""

    cluster_id: str
    chain: ChainName
    committed_end: int
    first_kept: int  # all objects below are deleted
    created_ms: int
    snapshots: tuple[Snapshot, ...] = ()  # at committed offsets


WalRequest = (
    WalStoreRequest
    | WalBuildRequest
    | WalBuildPutRequest
    | WalPutRequest
    | WalDropRequest
    | WalIndexRequest
)


def wal_request_to_fields(request: WalRequest) -> Fields:
    """Return the request as JSON values, without its number."""
    match request:
        case WalBuildRequest(name, slices, epochs, references):
            return {
                "op": "wal-build",
                "name": _pack_name(name),
                "slices": [_pack_slice(one) for one in slices],
                "epochs": pack_rows(WalSection.EPOCHS, epochs).hex(),
                "references": [_pack_reference(one) for one in references],
            }
        case WalBuildPutRequest(build, timeout_s):
            return {**wal_request_to_fields(build), "op": "wal-build-put", "timeout_s": timeout_s}
        case WalStoreRequest(build, timeout_s):
            return {**wal_request_to_fields(build), "op": "wal-store", "timeout_s": timeout_s}
        case WalPutRequest(cluster_id, chain, sequence, timeout_s):
            return {
                "op": "wal-put",
                "cluster": cluster_id,
                "chain": _pack_chain(chain),
                "sequence": sequence,
                "timeout_s": timeout_s,
            }
        case WalDropRequest(chain, below):
            return {"op": "wal-drop", "chain": _pack_chain(chain), "below": below}
        case WalIndexRequest(cluster_id, chain, committed_end, first_kept, created_ms, snapshots):
            return {
                "op": "wal-index",
                "cluster": cluster_id,
                "chain": _pack_chain(chain),
                "end": committed_end,
                "first": first_kept,
                "created_ms": created_ms,
                "snapshots": [
                    [str(one.topic_id), *one[1:3], one.data.hex(), one.leader_epoch]
                    for one in snapshots
                ],
            }


def wal_request_from_fields(fields: Fields) -> WalRequest:
    """Return the request. Raises ``KeyError``, ``TypeError`` or ``ValueError``."""
    match fields["op"]:
        case "wal-store":
            return WalStoreRequest(_unpack_build(fields), float(fields["timeout_s"]))
        case "wal-build-put":
            return WalBuildPutRequest(_unpack_build(fields), float(fields["timeout_s"]))
        case "wal-build":
            return _unpack_build(fields)
        case "wal-put":
            return WalPutRequest(
                str(fields["cluster"]),
                _unpack_chain(fields["chain"]),
                int(fields["sequence"]),
                float(fields["timeout_s"]),
            )
        case "wal-drop":
            return WalDropRequest(_unpack_chain(fields["chain"]), int(fields["below"]))
        case "wal-index":
            return WalIndexRequest(
                str(fields["cluster"]),
                _unpack_chain(fields["chain"]),
                int(fields["end"]),
                int(fields["first"]),
                int(fields["created_ms"]),
                tuple(
                    Snapshot(UUID(topic_id), int(index), int(end), bytes.fromhex(data), int(epoch))
                    for topic_id, index, end, data, epoch in fields["snapshots"]
                ),
            )
    raise ValueError(f"an unknown request: {fields['op']!r}")


def _unpack_build(fields: Fields) -> WalBuildRequest:
    epochs = bytes.fromhex(fields["epochs"])
    return WalBuildRequest(
        _unpack_name(fields["name"]),
        tuple(map(_unpack_slice, fields["slices"])),
        tuple(RowTable(EpochRow, WalSection.EPOCHS, memoryview(epochs))),
        tuple(map(_unpack_reference, fields["references"])),
    )


def _pack_chain(chain: ChainName) -> list[object]:
    return [chain.broker_id, str(chain.chain_id)]


def _unpack_chain(packed: Sequence[Any]) -> ChainName:
    broker_id, chain_id = packed
    return ChainName(int(broker_id), UUID(chain_id))


def _pack_name(name: ObjectName) -> list[object]:
    return [
        name.cluster_id,
        _pack_chain(name.chain),
        name.sequence,
        name.committed_end,
        name.previous_crc,
        name.created_ms,
    ]


def _unpack_name(packed: Sequence[Any]) -> ObjectName:
    cluster_id, chain, *numbers = packed
    sequence, committed_end, previous_crc, created_ms = map(int, numbers)
    return ObjectName(
        str(cluster_id), _unpack_chain(chain), sequence, committed_end, previous_crc, created_ms
    )


def _pack_slice(one: SliceFiles) -> list[object]:
    return [
        str(one.topic_id),
        one.partition,
        one.leader_epoch,
        one.base_offset,
        one.end_offset,
        [list(range_) for range_ in one.ranges],
        one.is_foreign,
    ]


def _unpack_slice(packed: Sequence[Any]) -> SliceFiles:
    topic_id, partition, leader_epoch, base_offset, end_offset, ranges, is_foreign = packed
    return SliceFiles(
        UUID(topic_id),
        int(partition),
        int(leader_epoch),
        int(base_offset),
        int(end_offset),
        tuple(FileRange(str(path), int(start), int(end)) for path, start, end in ranges),
        bool(is_foreign),
    )


def _pack_reference(one: ForeignSlice) -> list[object]:
    return [
        _pack_chain(one.gateway),
        one.sequence,
        one.leader_epoch,
        one.base_offset,
        pack_rows(WalSection.SLICES, (one.row,)).hex(),
        pack_rows(WalSection.BATCHES, one.batches).hex(),
    ]


def _unpack_reference(packed: Sequence[Any]) -> ForeignSlice:
    gateway, sequence, leader_epoch, base_offset, row, batches = packed
    rows = memoryview(bytes.fromhex(batches))
    return ForeignSlice(
        _unpack_chain(gateway),
        int(sequence),
        int(leader_epoch),
        int(base_offset),
        RowTable(SliceRow, WalSection.SLICES, memoryview(bytes.fromhex(row)))[0],
        tuple(RowTable(BatchRow, WalSection.BATCHES, rows)),
    )
