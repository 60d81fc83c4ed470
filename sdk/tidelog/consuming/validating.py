"""Whether what was read is still in the log after the partition got another leader.

A leader that was elected although it was behind does not have what others had, and what
it writes takes the same offsets: who reads on from its position would miss records and
never know. So a position carries the leader epoch of the last record before it, and is
held against each new leader's log before the next fetch: the leader says where that
epoch ends (OffsetForLeaderEpoch). An end below the position is where the two part.

What was fetched ahead is asked about first. If that is gone it is dropped, and the
position behind what was handed out is asked about in its place; only if that is gone as
well has the user seen records that the log no longer has. Positions without an epoch
(sought, or looked up by time) cannot be told from others and count as valid.
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
_LOOKUPS_MAX = 2  # A leader older than what we have read is believed after so many answers.


class _Question(NamedTuple):
    """What the leader of ``leader_epoch`` is asked about a partition."""

    state: PartitionState
    version: int
    position: int
    epoch: int
    leader_epoch: int

    @property
    def is_open(self) -> bool:
        """Whether the position still is the one that was asked about."""
        state = self.state
        return (state.version, state.fetch_position, state.fetch_epoch) == self[1:4]


class Validator:
    """Holds positions against the logs of new leaders. For the fetcher."""

    def __init__(
        self, cluster: Cluster, options: ConsumerOptions, on_answer: Callable[[], None]
    ) -> None:
        self._cluster = cluster
        self._policy = options.auto_offset_reset
        self._on_answer = on_answer
        self._doubtful: dict[int, list[_Question]] = {}  # by the node to ask
        self._asking: set[PartitionState] = set()  # those in ``_doubtful`` included
        self._behind: dict[TopicPartition, int] = {}  # metadata version that first was too old

    def is_valid(self, state: PartitionState, leader: PartitionInfo) -> bool:
        """Return whether the partition may be fetched on under this leader.

        If not, ``requests`` will have one that finds out.
        """
        if state.leader_epoch == leader.leader_epoch:
            return True
        if UNKNOWN in (state.fetch_epoch, leader.leader_epoch):
            state.settle(leader.leader_epoch)
            return True
        if state not in self._asking and self._is_credible(state, leader):
            self._asking.add(state)
            self._doubtful.setdefault(leader.leader, []).append(
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
        """Yield what asks the leaders about the positions in doubt. One attempt each."""
        doubtful, self._doubtful = self._doubtful, {}
        for node_id, questions in doubtful.items():
            yield self._ask(node_id, questions)

    def _is_credible(self, state: PartitionState, leader: PartitionInfo) -> bool:
        if state.fetch_epoch <= leader.leader_epoch:
            return True
        # One that was deposed would not know the epoch, which looks as if it had been lost.
        # It must be so, though, if the topic was deleted and made anew.
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
                    self._settle(question)
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
                    continue  # Sought meanwhile; if need be it is asked about anew.
                code = answer.error_code
                if code is ErrorCode.none:
                    self._judge(question, int(answer.end_offset), int(answer.leader_epoch))
                elif code.retriable or code is ErrorCode.unknown_server_error:
                    self._retry_later(question)
                else:
                    question.state.error = error_for(code, None, about=partition)
        for question in unanswered.values():
            self._retry_later(question)

    def _judge(self, question: _Question, end_offset: int, epoch: int) -> None:
        state = question.state
        is_end_known = UNKNOWN not in (end_offset, epoch)
        if is_end_known and end_offset >= question.position:
            self._settle(question)
            return
        if state.position < state.fetch_position:
            state.rewind()
            return
        logger.warning(
            "log was truncated",
            extra={
                "partition": str(state.partition),
                "offset": question.position,
                "epoch": question.epoch,
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
            self._settle(question)
        else:
            state.forget(RESET_TIMESTAMPS[self._policy])

    def _settle(self, question: _Question) -> None:
        question.state.settle(question.leader_epoch)
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
