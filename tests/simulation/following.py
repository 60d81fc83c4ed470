"""How a simulated follower asks one leader: the fetcher's own session, on a simulated connection.

As the node's ``LeaderFetcher``: one fetch at a time, and another one beside it where something
new is to be told; answers are taken in the order of their requests; one that does not come ends
the connection, and what is late or doubled belongs to none. Whatever may change how the
partition is to be asked for has it looked at before the next fetch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidelog_core.errors import ErrorCode
from tidelog_core.fetch_session import FetcherSession
from tidelog_core.replication.follower_state import FetchAnswer, FollowerState, ReplicaFetch
from tidelog_node.wire.fetch import FetchPartition, FetchRequest

from tests.simulation.leading import PARTITION, TOPIC_ID, FetchedAnswer, Records

if TYPE_CHECKING:
    from tests.simulation.node import SimNode

FETCH_WAIT_MS = 90  # a long poll at the leader
FETCH_TIMEOUT_MS = 250.0
FETCH_RETRY_MS = 50.0

KEY = TOPIC_ID.bytes  # of the only partition

Session = FetcherSession[bytes, ReplicaFetch]


class SimFetcher:
    """Fetches the partition from one leader, in one life of a node."""

    def __init__(self, node: SimNode, leader_id: int, *, fetch_count_max: int) -> None:
        self._node = node
        self._leader_id = leader_id
        self._fetch_count_max = fetch_count_max
        self._session: Session = FetcherSession(
            new_max=4, named_max=8, clock_s=lambda: node.now() / 1000
        )
        self._follower: FollowerState | None = None
        self._number = 0  # of the last request
        self._under_way: list[int] = []
        self._answers: dict[int, FetchedAnswer] = {}  # that have come before others
        self._sent_ms = 0.0
        self._not_before_ms = 0.0
        self._is_put_off = False
        self._is_changed = False  # the partition must be looked at
        self._is_urgent = False
        self._replica_epoch = -1  # as the leader was told

    def follow(self, follower: FollowerState) -> None:
        """Follow in this leader epoch."""
        self._follower = follower
        follower.on_stop = lambda: self._drop(follower)
        self._fetch_now()

    def on_trouble(self) -> None:
        """Ask no more while the log is broken."""
        self._session.forget(KEY)
        self._fetch_now()

    def on_exchanged(self) -> None:
        """Begin again with another log."""
        self._session.forget(KEY)
        self.resume()

    def resume(self) -> None:
        """Ask again at once: the log begins elsewhere."""
        self._not_before_ms = 0.0
        self._fetch_now()

    def put_off(self, delay_ms: float) -> None:
        """Leave the partition out for a while."""
        self._not_before_ms = self._node.now() + delay_ms
        self._is_put_off = self._is_changed = True

    def step(self, now_ms: float) -> None:
        """Send what is to be sent now."""
        if self._under_way and now_ms - self._sent_ms >= FETCH_TIMEOUT_MS:
            self._disconnect()
        if not self._under_way:
            self._send(now_ms, may_wait=True)
        elif self._is_urgent and len(self._under_way) == 1:
            is_same_replica = self._node.replica_epoch == self._replica_epoch
            if self._session.is_established and is_same_replica:
                self._send(now_ms, may_wait=False)
            elif self._session.is_declined or not is_same_replica:
                self._disconnect()

    def on_answer(self, number: int, answer: FetchedAnswer) -> None:
        """Take an answer, unless its connection is gone or it has come before."""
        if number not in self._under_way:
            return
        self._answers[number] = answer
        while self._under_way and self._under_way[0] in self._answers:
            self._take(self._answers.pop(self._under_way.pop(0)))
        self.step(self._node.now())

    def _drop(self, follower: FollowerState) -> None:
        if self._follower is follower:
            self._follower = None
            self._session.forget(KEY)

    def _fetch_now(self) -> None:
        self._is_changed = self._is_urgent = True

    def _disconnect(self) -> None:
        self._under_way.clear()
        self._answers.clear()
        self._session.restart()

    # -- asking --

    def _send(self, now_ms: float, *, may_wait: bool) -> None:
        self._is_urgent = False
        if may_wait:
            self._take_registration(self._node.replica_epoch)
        self._update_fetch(now_ms)
        session = self._session
        if not (may_wait or session.has_news):
            return
        fetch = session.next_fetch()
        if fetch is None:
            return
        self._number += 1
        self._under_way.append(self._number)
        self._sent_ms = now_ms
        named = [
            FetchPartition(
                PARTITION.partition,
                wanted.leader_epoch,
                wanted.offset,
                wanted.last_fetched_epoch,
                wanted.log_start_offset,
                self._fetch_count_max,
            )
            for _, wanted in fetch.named
        ]
        request = FetchRequest(
            replica_id=self._node.broker_id,
            max_wait_ms=FETCH_WAIT_MS if may_wait and fetch.may_wait else 0,
            min_bytes=1,
            max_bytes=self._fetch_count_max,
            isolation_level=0,
            session_id=fetch.session_id,
            session_epoch=fetch.session_epoch,
            topics=[(KEY, named)] if named else [],
            replica_epoch=self._replica_epoch,
            element_count=2 * len(named),
            forgotten=[(key, [PARTITION.partition]) for key in fetch.forgotten],
        )
        self._node.send_fetch(self._leader_id, self._number, request)

    def _take_registration(self, replica_epoch: int) -> None:
        """Begin another session under another registration: nothing told before counts."""
        if replica_epoch != self._replica_epoch:
            self._replica_epoch = replica_epoch
            self._is_changed = True
            self._session.restart()

    def _update_fetch(self, now_ms: float) -> None:
        """Bring the session to what can be asked for now, where that may have changed."""
        if self._is_put_off and now_ms >= self._not_before_ms:
            self._is_put_off, self._is_changed = False, True
        if not self._is_changed:
            return
        self._is_changed = False
        fetch = None
        if self._follower is not None and now_ms >= self._not_before_ms:
            fetch = self._node.next_fetch(self._follower)
        if fetch is None:
            self._session.forget(KEY)
        else:
            self._session.want(KEY, fetch)

    # -- answers --

    def _take(self, answer: FetchedAnswer) -> None:
        keys = [KEY for _ in answer.results]
        if keys and not self._under_way and self._session.last_asked(KEY) is None:
            self._node.checker.on_forgotten_told()
        if not self._session.on_answer(answer.error, answer.session_id, keys):
            if self._under_way:
                self._disconnect()
            return
        follower, fetch = self._follower, self._session.last_asked(KEY)
        for result in answer.results:
            if follower is not None and fetch is not None:
                self._is_changed = True
                self._act(follower, fetch, result)
        if self._under_way and not self._session.is_established:
            self._disconnect()  # The leader has closed the session.

    def _act(self, follower: FollowerState, fetch: ReplicaFetch, result: Any) -> None:
        records: Records | None = result.records
        if records is not None and records.base_offset != fetch.offset:
            if not self._under_way:  # Else what is asked for has changed since.
                self._node.checker.on_records_unasked(fetch.offset, records.base_offset)
            self.put_off(FETCH_RETRY_MS)  # The log takes no records from elsewhere.
            return
        error = ErrorCode(result.error_code)
        delay_ms = self._node.take_fetched(
            follower,
            fetch,
            FetchAnswer(error, result.high_watermark, result.log_start_offset, result.diverging),
            () if records is None else records.entries,
        )
        if delay_ms > 0:
            self.put_off(delay_ms)
