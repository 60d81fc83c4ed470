"""Validates positions against the log of a partition's new leader.

A leader that was elected although it lacked records writes other records at the same
offsets: a consumer that continued from its position would miss records without noticing.
So a position carries the leader epoch of the last record before it, and is compared with
each new leader's log before the next fetch: the leader returns the end offset of that
epoch (OffsetForLeaderEpoch). An end below the position is where the logs diverge.

The prefetch position is checked first. If it is gone, the prefetched records are dropped
and the position after the last returned record is checked instead; only if that is gone
too has the user seen records that the log no longer has. Positions without an epoch
(sought, or looked up by time) cannot be checked and count as valid.
Source: KIP-320; Kafka's ``SubscriptionState.maybeCompleteValidation``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode
from kio.schema.offset_for_leader_epoch.v4.request import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tidelog_core.model import TopicPartition
from tidelog_core.wire_messages import build

from tidelog.cluster import Cluster
from tidelog.consuming.locating import RESET_TIMESTAMPS
from tidelog.consuming.positions import UNKNOWN, PartitionState
from tidelog.errors import LogTruncation, TidelogError, error_for
from tidelog.metadata import PartitionInfo
from tidelog.options import ConsumerOptions
from tidelog.wire.requests import OFFSET_FOR_LEADER_EPOCH, supports

logger = logging.getLogger(__name__)

_CONSUMER_ID = -1
_RETRIED_S = 0.1
_LOOKUPS_MAX = 2  # metadata answers after which an epoch older than our records is accepted


class _Question(NamedTuple):
    """A position to check, and the leader epoch for its request."""

    state: PartitionState
    version: int
    position: int
    epoch: int
    leader_epoch: int

    @property
    def is_open(self) -> bool:
        """Whether the position has not changed since the request."""
        state = self.state
        return (state.version, state.fetch_position, state.fetch_epoch) == self[1:4]


class Validator:
    """Checks positions with new leaders, for the fetcher."""

    def __init__(
        self, cluster: Cluster, options: ConsumerOptions, on_answer: Callable[[], None]
    ) -> None:
        self._cluster = cluster
        self._policy = options.auto_offset_reset
        self._on_answer = on_answer
        self._unasked: dict[int, list[_Question]] = {}  # by leader
        self._asking: set[PartitionState] = set()  # includes those in ``_unasked``
        self._behind: dict[TopicPartition, int] = {}  # metadata version that was too old first

    def is_valid(self, state: PartitionState, leader: PartitionInfo) -> bool:
        """Return whether the partition may be fetched under this leader.

        If not, ``requests`` will yield a request that checks it.
        """
        if state.leader_epoch == leader.leader_epoch:
            return True
        if UNKNOWN in (state.fetch_epoch, leader.leader_epoch):
            state.mark_validated(leader.leader_epoch)
            return True
        if state not in self._asking and self._is_credible(state, leader):
            self._asking.add(state)
            self._unasked.setdefault(leader.leader, []).append(
                _Question(
                    state,
                    state.version,
                    state.fetch_position,
                    state.fetch_epoch,
                    leader.leader_epoch,
                )
            )
        return False

    def requests(self) -> Iterator[Coroutine[Any, Any, None]]:
        """Yield the requests that check positions, each a single attempt."""
        doubtful, self._unasked = self._unasked, {}
        for node_id, questions in doubtful.items():
            yield self._ask(node_id, questions)

    def _is_credible(self, state: PartitionState, leader: PartitionInfo) -> bool:
        if state.fetch_epoch <= leader.leader_epoch:
            return True
        # A deposed leader does not know the epoch, which looks like a lost log. But the epoch
        # really is lower if the topic was deleted and created again.
        first = self._behind.setdefault(state.partition, self._cluster.version)
        if self._cluster.version - first >= _LOOKUPS_MAX:
            return True
        self._cluster.invalidate()
        return False

    async def _ask(self, node_id: int, questions: Sequence[_Question]) -> None:
        try:
            connection = await self._cluster.connection(node_id)
            if supports(OFFSET_FOR_LEADER_EPOCH, connection.versions):
                response = await connection.request(
                    OFFSET_FOR_LEADER_EPOCH,
                    _request(questions),
                    timeout_s=self._cluster.request_timeout_s,
                )
                self._take(questions, response)
            else:
                for question in questions:
                    self._accept(question)
        except TidelogError as error:
            logger.info(
                "positions not validated, will retry",
                extra={"broker_id": node_id, "reason": str(error)},
            )
            for question in questions:
                self._retry_later(question)
        finally:
            self._asking.difference_update(question.state for question in questions)
            self._on_answer()

    def _take(self, questions: Sequence[_Question], response: Any) -> None:
        unanswered = {question.state.partition: question for question in questions}
        for topic in response.topics:
            for answer in topic.partitions:
                partition = TopicPartition(topic.topic, int(answer.partition))
                question = unanswered.pop(partition, None)
                if question is None or not question.is_open:
                    continue  # Sought since; the new position is checked if necessary.
                code = answer.error_code
                if code is ErrorCode.none:
                    self._evaluate(question, int(answer.end_offset), int(answer.leader_epoch))
                elif code.retriable or code is ErrorCode.unknown_server_error:
                    self._retry_later(question)
                else:
                    question.state.error = error_for(code, None, about=partition)
        for question in unanswered.values():
            self._retry_later(question)

    def _evaluate(self, question: _Question, end_offset: int, epoch: int) -> None:
        state = question.state
        is_end_known = end_offset >= 0 and epoch >= 0
        if is_end_known and end_offset >= question.position:
            self._accept(question)
            return
        if state.position < state.fetch_position:
            state.rewind()
            return
        logger.warning(
            "log was truncated",
            extra={
                "partition": str(state.partition),
                "offset": question.position,
                "leader_epoch": question.epoch,
                "divergent_offset": end_offset,
            },
        )
        if self._policy == "none":
            state.error = LogTruncation(
                state.partition,
                question.position,
                divergent_offset=end_offset if is_end_known else None,
            )
        elif is_end_known:
            state.jump(end_offset, epoch)
            self._accept(question)
        else:
            state.forget(RESET_TIMESTAMPS[self._policy])

    def _accept(self, question: _Question) -> None:
        question.state.mark_validated(question.leader_epoch)
        self._behind.pop(question.state.partition, None)

    def _retry_later(self, question: _Question) -> None:
        self._cluster.invalidate()
        question.state.retry_at_s = asyncio.get_running_loop().time() + _RETRIED_S


def _request(questions: Sequence[_Question]) -> object:
    topics: dict[str, list[OffsetForLeaderPartition]] = {}
    for question in questions:
        partition = question.state.partition
        topics.setdefault(partition.topic, []).append(
            build(
                OffsetForLeaderPartition,
                partition=partition.partition,
                current_leader_epoch=question.leader_epoch,
                leader_epoch=question.epoch,
            )
        )
    return build(
        OffsetForLeaderEpochRequest,
        replica_id=_CONSUMER_ID,
        topics=tuple(
            build(OffsetForLeaderTopic, topic=name, partitions=tuple(partitions))
            for name, partitions in topics.items()
        ),
    )
