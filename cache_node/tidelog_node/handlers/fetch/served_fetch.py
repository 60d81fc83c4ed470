"""A Fetch request in progress: its reads, its wait and its answer.

There are three kinds. ``FullFetch`` names every partition, ``SessionFetch`` belongs to a fetch
session, ``ListedFetch`` repeats the full request before it.
"""

from __future__ import annotations

from tidelog_node.answers import Reply
from tidelog_node.handlers.fetch.reading import Reading
from tidelog_node.handlers.fetch.serving import FetchServing
from tidelog_node.replicas.replica import ReplicaWaiter
from tidelog_node.requests.routes import RequestContext
from tidelog_node.requests.session import NO_NODE
from tidelog_node.throttling.throttle import NO_LIMIT_BYTES
from tidelog_node.wire.fetch import FetchRequest
from tidelog_node.wire.fetch_answer import encode_fetch, fetch_size_bytes, set_throttle_time


class ServedFetch:
    """One request in progress."""

    def __init__(
        self, serving: FetchServing, request: FetchRequest, context: RequestContext
    ) -> None:
        self.serving = serving
        self.request = request
        self.context = context
        self.version = context.api_version
        self.min_bytes = request.min_bytes
        self.bytes_max = NO_LIMIT_BYTES
        throttle = serving.throttle
        if throttle is not None and throttle.is_active:
            self.bytes_max = throttle.fetch_bytes_max(context.session)
            self.min_bytes = min(request.min_bytes, self.bytes_max)

    def overtaken(self) -> Reply | None:
        """Return the answer if a later request of the same session has come."""
        return None

    def read(self, *, is_new: bool) -> Reading:
        """Read, within the request's limits, from the local logs."""
        raise NotImplementedError

    def read_on(self) -> Reading:
        """Read the next partitions, if the last reading has set ``has_more``."""
        raise NotImplementedError

    def reply(self, reading: Reading) -> Reply:
        """Return the answer with the records found, an empty one to a client over its quota."""
        overtaken = self.overtaken()
        if overtaken is not None:
            return overtaken
        reply = self.encode(reading)
        throttle, context = self.serving.throttle, self.context
        if (
            throttle is not None
            and throttle.is_active
            and not throttle.fetched(context, fetch_size_bytes(reply, self.version))
        ):
            return self.empty()
        self.note_sent()
        self._count(reading)
        if context.throttle_ms:
            return set_throttle_time(reply, self.version, context.throttle_ms)
        return reply

    def _count(self, reading: Reading) -> None:
        """Count the bytes of the records that are answered."""
        client = reading.client
        if client is None:
            for replica, size_bytes, _ in reading.found:
                replica.traffic.replicated_out_bytes += size_bytes
            return
        if client.node_id != NO_NODE:
            return  # A node reads for itself, like a lag of groups or a damaged segment.
        for replica, size_bytes, offset_count in reading.found:
            replica.traffic.note_fetched(size_bytes, offset_count)

    def encode(self, reading: Reading) -> Reply:
        """Return the answer with the records found, which may not be sent."""
        raise NotImplementedError

    def note_sent(self) -> None:
        """Note that the client gets the encoded answer."""

    def empty(self) -> Reply:
        """Return an answer without partitions instead of the encoded one."""
        return encode_fetch(
            self.version,
            self.context.correlation_id,
            (),
            throttle_ms=self.context.throttle_ms,
        )

    def begin_waiting(self, poll: ReplicaWaiter) -> None:
        """Have ``poll`` notified of appends."""
        raise NotImplementedError

    def end_waiting(self, poll: ReplicaWaiter) -> None:
        """Undo ``begin_waiting``."""
        raise NotImplementedError
