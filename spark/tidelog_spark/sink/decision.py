"""A stream driver's decision to commit a micro-batch, and its storage.

The decision is a committed offset of the stream's own group, for a partition that every
cluster has, with the batch's transactions in the offset's metadata. The offset is the
number of the next batch. A metadata text has a limit, so a long decision continues in
further groups; all are committed by one transaction.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tidelog import Admin, GroupMetadata, OffsetAndMetadata, Producer
from tidelog.errors import TidelogError
from tidelog.producing.prepared import PreparedTransaction
from tidelog_core.model import CONSUMER_OFFSETS_TOPIC, TopicPartition

from tidelog_spark.sink.clients import (
    UNSTABLE_TIMEOUT_MS,
    SinkNames,
    fence,
    is_unstable,
    open_admin,
)
from tidelog_spark.sink.errors import CorruptDecision, UnknownDecisionFormat
from tidelog_spark.sink.options import SinkOptions
from tidelog_spark.sink.runs import DecidingRun, attempt_id

MARKED = TopicPartition(CONSUMER_OFFSETS_TOPIC, 0)
# Grows when earlier programs cannot read a decision, or would read it wrongly. A decision without
# the number is of format 1, which has no lanes, or 2.
FORMAT = 2
TEXT_SIZE_MAX = 4000  # characters; ``offset.metadata.max.bytes`` is 4096 by default


@dataclass(frozen=True, slots=True)
class WrittenTask:
    """The transaction that contains the rows of one task."""

    task: int
    attempt: int
    row_count: int
    prepared: PreparedTransaction
    lane: int | None  # of its run; None: an earlier program's


@dataclass(frozen=True, slots=True)
class Decision:
    """A micro-batch that is committed, or will be by the next run that finds this."""

    batch_id: int
    task_count: int  # including tasks without rows
    tasks: Mapping[int, WrittenTask]  # by number
    run: DecidingRun | None = None  # None: an earlier program's

    def texts(self) -> list[str]:
        """Return the decision as texts of at most ``TEXT_SIZE_MAX``."""
        document = {
            "format": FORMAT,
            "batch": self.batch_id,
            "tasks": self.task_count,
            **({} if self.run is None else {"run": dataclasses.astuple(self.run)}),
            "written": [
                [
                    written.task,
                    written.attempt,
                    written.row_count,
                    written.prepared.producer_id,
                    written.prepared.epoch,
                    int(written.prepared.adds_itself),
                    written.lane,
                ]
                for written in self.tasks.values()
            ],
        }
        packed = zlib.compress(json.dumps(document, separators=(",", ":")).encode(), 9)
        text = base64.b64encode(packed).decode()
        size = TEXT_SIZE_MAX - 8  # for the count in front of the first
        pieces = [text[start : start + size] for start in range(0, len(text), size)]
        return [f"{len(pieces)}:{pieces[0]}", *pieces[1:]]

    @classmethod
    def from_text(cls, text: str, names: SinkNames) -> Decision:
        """Parse the joined texts of a decision.

        Raises ``UnknownDecisionFormat`` for that of a later program, and ``CorruptDecision``.
        """
        try:
            document = json.loads(zlib.decompress(base64.b64decode(text, validate=True)))
            number = document.get("format", FORMAT)
            if number > FORMAT:
                raise UnknownDecisionFormat(names.group_id, number, known=FORMAT)
            tasks = {
                task: WrittenTask(
                    task,
                    attempt,
                    row_count,
                    PreparedTransaction(
                        attempt_id(names, _lane(lane), task, attempt),
                        producer_id,
                        epoch,
                        bool(adds_itself),
                    ),
                    _lane(lane),
                )
                for task, attempt, row_count, producer_id, epoch, adds_itself, *lane in document[
                    "written"
                ]
            }
            run = DecidingRun(*document["run"]) if "run" in document else None
            return cls(document["batch"], document["tasks"], tasks, run)
        except (ValueError, KeyError, TypeError, AttributeError, zlib.error) as error:
            raise CorruptDecision(names.group_id, repr(error)) from None


def _lane(rest: Sequence[int | None]) -> int | None:
    """Return the lane from the end of a task's entry, which earlier programs did not write."""
    return rest[0] if rest else None


async def record(decision: Decision, names: SinkNames, decider: Producer) -> None:
    """Commit the decision. Raises ``ProducerFenced`` if another driver has taken over.

    ``decider`` is the producer of ``names.deciding_id``.
    """
    async with decider.transaction() as transaction:
        for number, text in enumerate(decision.texts()):
            await transaction.send_offsets(
                {MARKED: OffsetAndMetadata(decision.batch_id + 1, metadata=text)},
                GroupMetadata(_group(names, number)),
            )


async def read(names: SinkNames, admin: Admin) -> Decision | None:
    """Return the last decision, or None.

    Raises an error with ``is_unstable`` true while one is being committed.
    """
    while True:
        first = await _text(names, admin, 0)
        if first is None:
            return None
        count, _, text = first[1].partition(":")
        rest = [await _text(names, admin, number) for number in range(1, int(count))]
        if all(found is not None and found[0] == first[0] for found in rest):
            return Decision.from_text(text + "".join(f[1] for f in rest if f is not None), names)
        # The next decision was committed during the read.


async def read_settled(options: SinkOptions, names: SinkNames) -> Decision | None:
    """Return the last decision; completes one that a driver was committing when it died."""
    # A first look that finds no answer says nothing about the decision: the nodes may be busy.
    for timeout_ms in (UNSTABLE_TIMEOUT_MS, options.max_block_ms):
        # An error of its start is raised: nodes that cannot be reached are waited for once.
        async with open_admin(options, timeout_ms=timeout_ms) as admin:
            try:
                return await read(names, admin)
            except TidelogError as error:
                if is_unstable(error):
                    break
                if not error.retriable or timeout_ms == options.max_block_ms:
                    raise
    await fence(options, names.deciding_id)
    async with open_admin(options) as admin:
        return await read(names, admin)


async def _text(names: SinkNames, admin: Admin, number: int) -> tuple[int, str] | None:
    found = (await admin.list_group_offsets(_group(names, number), [MARKED])).get(MARKED)
    return None if found is None else (found.offset, found.metadata)


def _group(names: SinkNames, number: int) -> str:
    return names.group_id if number == 0 else f"{names.group_id}.{number}"
