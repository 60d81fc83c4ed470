"""Random logs with transactions, and the records that compaction must keep."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from hypothesis import strategies as st
from tidelog_core.log.producers.producer_snapshots import note_batch
from tidelog_core.log.producers.producer_state import ProducerState
from tidelog_core.log.values import AbortedTransaction
from tidelog_core.records.batch import (
    BatchHeader,
    CompressionType,
    Record,
    build_batch,
    decode_records,
    iter_headers,
    parse_header,
)
from tidelog_core.records.control import (
    ControlType,
    EndTransactionMarker,
    build_end_transaction_marker,
)

from tests.support.clock import NOW_MS

KEYS = [f"key-{number}".encode() for number in range(6)]
TRANSACTIONAL_PRODUCERS = (11, 12)
IDEMPOTENT_PRODUCER = 10


@dataclass
class RandomLog:
    """Batches as a leader has them; transactions that are open are ended by ``end_all``."""

    batches: list[bytes] = field(default_factory=list)
    end_offset: int = 0
    open: set[int] = field(default_factory=set)
    sequences: dict[int, int] = field(default_factory=dict)

    def append(
        self,
        records: list[tuple[bytes | None, bytes | None]],
        producer_id: int,
        codec: CompressionType,
        timestamp_ms: int | None = None,
    ) -> None:
        """Append one batch; the producer decides whether it is transactional."""
        if timestamp_ms is None:
            timestamp_ms = NOW_MS + self.end_offset
        is_transactional = producer_id in TRANSACTIONAL_PRODUCERS
        if is_transactional:
            self.open.add(producer_id)
        sequence = self.sequences.get(producer_id, 0)
        self.batches.append(
            build_batch(
                [Record(0, timestamp_ms, *record) for record in records],
                base_offset=self.end_offset,
                compression=codec,
                producer_id=producer_id,
                producer_epoch=0 if producer_id >= 0 else -1,
                base_sequence=sequence if producer_id >= 0 else -1,
                leader_epoch=3,
                is_transactional=is_transactional,
            )
        )
        self.sequences[producer_id] = sequence + len(records)
        self.end_offset += len(records)

    def end(self, producer_id: int, kind: ControlType) -> None:
        """End the producer's transaction, if one is open."""
        if producer_id not in self.open:
            return
        self.open.remove(producer_id)
        self.batches.append(
            build_end_transaction_marker(
                EndTransactionMarker(kind, 0),
                producer_id=producer_id,
                producer_epoch=0,
                timestamp_ms=NOW_MS + self.end_offset,
                base_offset=self.end_offset,
                leader_epoch=3,
            )
        )
        self.end_offset += 1

    def end_all(self) -> None:
        """Commit open transactions, so that the whole log is stable."""
        for producer_id in sorted(self.open):
            self.end(producer_id, ControlType.COMMIT)


_RECORD = st.tuples(st.sampled_from(KEYS), st.none() | st.binary(max_size=3))
_APPEND = st.tuples(
    st.lists(_RECORD, min_size=1, max_size=4),
    st.sampled_from((-1, IDEMPOTENT_PRODUCER, *TRANSACTIONAL_PRODUCERS)),
    st.sampled_from(CompressionType),
)
_END = st.tuples(st.sampled_from(TRANSACTIONAL_PRODUCERS), st.sampled_from(ControlType))
OPERATIONS = st.lists(_APPEND | _END, min_size=1, max_size=25)


def keyed(*keys: bytes) -> RandomLog:
    """Return a log of one batch for every key, each with the offset as its value."""
    log = RandomLog()
    for offset, key in enumerate(keys):
        log.append([(key, b"%d" % offset)], -1, CompressionType.NONE)
    return log


def apply(log: RandomLog, operations: Iterable[tuple[object, ...]]) -> None:
    """Apply the drawn operations and end every transaction."""
    for operation in operations:
        if isinstance(operation[0], list):
            log.append(*operation)  # type: ignore[arg-type]
        else:
            log.end(*operation)  # type: ignore[arg-type]
    log.end_all()


def positioned(batches: Iterable[bytes]) -> Iterator[tuple[bytes, int, BatchHeader]]:
    """Yield the batches as a rewrite takes them, out of one buffer."""
    content = b"".join(batches)
    for position, header in iter_headers(content):
        yield content, position, header


def producers_of(batches: Iterable[bytes]) -> tuple[ProducerState, list[AbortedTransaction]]:
    """Return the producers' state behind the batches, and the transactions that they abort."""
    state = ProducerState(expiration_ms=2**62)
    aborted: list[AbortedTransaction] = []
    for buffer, position, header in positioned(batches):
        aborted += note_batch(state, buffer, position, header, now_ms=NOW_MS)
    return state, aborted


def committed_records(batches: list[bytes]) -> list[Record]:
    """Return the records that a ``read_committed`` consumer gets."""
    _, aborted = producers_of(batches)
    return [
        record
        for batch in batches
        if not (header := parse_header(batch)).is_control
        and not any(
            header.is_transactional
            and one.producer_id == header.producer_id
            and one.first_offset <= header.base_offset <= one.last_offset
            for one in aborted
        )
        for record in decode_records(batch)
    ]


def oracle(records: list[Record], end_offset: int) -> list[Record]:
    """Return the committed records that compaction below ``end_offset`` keeps."""
    latest = {record.key: record.offset for record in records if record.offset < end_offset}
    return [
        record
        for record in records
        if record.offset >= end_offset or latest[record.key] == record.offset
    ]
