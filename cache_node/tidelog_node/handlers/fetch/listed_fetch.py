"""A Fetch of all partitions of a kept list; it reads only those that may have news."""

from __future__ import annotations

from collections.abc import Sequence

from tidelog_core.fetch_epochs import NO_SESSION

from tidelog_node.answers import Reply
from tidelog_node.handlers.fetch.fetch_lists import FullList, ListedPartition
from tidelog_node.handlers.fetch.reading import READ_COMMITTED, Reading
from tidelog_node.handlers.fetch.served_fetch import ServedFetch
from tidelog_node.handlers.fetch.serving import FetchServing
from tidelog_node.replicas.replica import ReplicaWaiter
from tidelog_node.requests.routes import RequestContext
from tidelog_node.wire.fetch import FetchRequest
from tidelog_node.wire.fetch_answer import LEADERS_FROM, FetchAnswer, FetchResult
from tidelog_node.wire.fetch_list import write_list
from tidelog_node.wire.produce import Endpoint


class ListedFetch(ServedFetch):
    """A consumer's request whose partitions are in a kept list."""

    def __init__(
        self,
        serving: FetchServing,
        request: FetchRequest,
        context: RequestContext,
        listed: FullList,
    ) -> None:
        super().__init__(serving, request, context)
        self._listed = listed
        listed.is_busy = True
        self._found: list[FetchResult] = []  # by the last read
        self._visited: list[ListedPartition] = []  # the partitions of ``_found``

    def read(self, *, is_new: bool) -> Reading:
        """Read the partitions that may have news, and settle those that have none."""
        serving, request, listed = self.serving, self.request, self._listed
        reader = serving.reader
        if listed.is_ended or not serving.can_serve():
            listed.mark_all()  # No replica has notified the list, or none will.
        serving.note_rights(listed)
        reading = serving.begin(
            request, self.context, is_new=is_new, contact=None, bytes_max=self.bytes_max
        )
        found: list[FetchResult] = []
        visited: list[ListedPartition] = []
        for partition in listed.dirty_in_order():
            name, wanted = partition.topic, partition.wanted
            replica = reader.find(name, wanted.partition, request, self.version)
            result = reader.read(reading, name, wanted, replica, found)
            if replica is None:
                partition.unwatch()
            else:
                partition.watch(replica)
                if self._is_at_end(partition, result) and not reading.is_pending(wanted):
                    listed.settle_as(partition, result)
                    continue
            found.append(result)
            visited.append(partition)
        self._found, self._visited = found, visited
        if listed.is_ended:
            reading.must_answer = True  # Appends would not notify this fetch.
        return reading

    def read_on(self) -> Reading:
        """Read again: a read leaves out no partition."""
        return self.read(is_new=False)

    def _is_at_end(self, partition: ListedPartition, result: FetchResult) -> bool:
        """Whether this stays the partition's answer until something changes."""
        end = result.high_watermark
        if self.request.isolation_level == READ_COMMITTED:
            end = result.last_stable_offset
        return (
            partition.wanted.offset == end
            and result.error_code == 0
            and result.records is None
            and result.diverging is None
            and result.preferred_replica < 0
        )

    def encode(self, reading: Reading) -> Reply:
        """Return every partition's result, from the last read or kept."""
        listed, serving = self._listed, self.serving
        listed.is_busy = False
        context = self.context
        endpoints: Sequence[Endpoint] = ()
        are_hinted = reading.must_answer and self.version >= LEADERS_FROM
        results: list[tuple[int, FetchResult]] = []
        for partition, found in zip(self._visited, self._found, strict=True):
            result = found
            if are_hinted:
                result = serving.with_leader(partition.topic, found)
            results.append((partition.place, result))
        if are_hinted:
            endpoints = serving.endpoints_of([result for _, result in results], context)
        answer = FetchAnswer(self.version, session_id=NO_SESSION, throttle_ms=context.throttle_ms)
        write_list(answer, listed.layout, listed.answers, listed.first, results)
        return answer.finish(context.correlation_id, endpoints)

    def begin_waiting(self, poll: ReplicaWaiter) -> None:
        """Have ``poll`` notified of changes in any partition: all watch their replicas."""
        self._listed.poll = poll

    def end_waiting(self, poll: ReplicaWaiter) -> None:
        """End the notifications of ``poll``."""
        if self._listed.poll is poll:
            self._listed.poll = None
        self._listed.is_busy = False
