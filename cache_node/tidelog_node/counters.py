"""The counters of a node: plain integers, which ``monitoring`` reads at a scrape.

Counting is part of every request, so nothing here locks, allocates or calls a library. Counters
only grow and begin at 0 with the process. They are for the node's event loop, except where noted.
Numbers of labels are bounded here: topics beyond ``TOPICS_MAX`` share one counter.
"""

from __future__ import annotations

from collections.abc import Mapping

# Bucket i has durations below 2**i microseconds, and not below half of that. The last has all
# others.
BUCKET_COUNT = 28
MICROSECONDS = 1_000_000.0
TOPICS_MAX = 1_000
OTHER_TOPICS = "(others)"  # the name for all topics beyond; it is not a legal topic
ERRORS_MAX = 1_000


class Durations:
    """A histogram of durations with one bucket for each power of two."""

    __slots__ = ("counts", "total_us")

    def __init__(self) -> None:
        self.counts: list[int] = [0] * BUCKET_COUNT
        self.total_us = 0

    def observe(self, seconds: float) -> None:
        """Count one duration."""
        us = int(seconds * MICROSECONDS)
        us = max(us, 0)
        self.total_us += us
        place = us.bit_length()
        if place >= BUCKET_COUNT:
            place = BUCKET_COUNT - 1
        self.counts[place] += 1


class ListenerTraffic:
    """The connections of one listener, and their bytes, without those of TLS."""

    __slots__ = (
        "accepted_count",
        "broken_count",
        "login_count",
        "login_refused_count",
        "open_count",
        "received_bytes",
        "refused_count",
        "sent_bytes",
    )

    def __init__(self) -> None:
        self.open_count = 0
        self.accepted_count = 0
        self.refused_count = 0  # over a limit of connections
        self.broken_count = 0  # closed for a fault of the client
        self.login_count = 0
        self.login_refused_count = 0
        self.received_bytes = 0
        self.sent_bytes = 0

    def left(self, _: object) -> None:
        """Note that a connection is closed."""
        self.open_count -= 1


class SchemaTraffic:
    """The requests that a node's schema registry has answered, by kind and outcome."""

    __slots__ = ("counts", "durations")

    def __init__(self) -> None:
        self.counts: dict[tuple[str, str], int] = {}
        self.durations: dict[str, Durations] = {}

    def note(self, kind: str, outcome: str, seconds: float) -> None:
        """Count an answer. Both names are of a few that the program has."""
        self.counts[kind, outcome] = self.counts.get((kind, outcome), 0) + 1
        durations = self.durations.get(kind)
        if durations is None:
            durations = self.durations[kind] = Durations()
        durations.observe(seconds)


class TopicTraffic:
    """The bytes and records of a topic that clients have produced and fetched here."""

    __slots__ = (
        "fetched_bytes",
        "fetched_count",
        "fetched_from_tier_bytes",
        "fetched_offsets",
        "produced_batches",
        "produced_bytes",
        "produced_records",
        "replicated_across_bytes",
        "replicated_in_bytes",
        "replicated_out_bytes",
    )

    def __init__(self) -> None:
        self.produced_bytes = 0  # without duplicates
        self.produced_batches = 0
        self.produced_records = 0  # as the batches' headers say
        self.fetched_bytes = 0
        self.fetched_count = 0  # answers' partitions with records
        self.fetched_offsets = 0  # of these records, as ``LogRead`` knows their end
        self.fetched_from_tier_bytes = 0  # part of fetched_bytes
        self.replicated_in_bytes = 0  # appended here as a follower
        self.replicated_across_bytes = 0  # the part of them that came from another zone
        self.replicated_out_bytes = 0  # fetched by followers

    def note_fetched(self, size_bytes: int, offset_count: int) -> None:
        """Count one partition of an answer."""
        self.fetched_bytes += size_bytes
        self.fetched_count += 1
        self.fetched_offsets += offset_count

    def note_fetched_from_tier(self, size_bytes: int, offset_count: int) -> None:
        """Count one partition of an answer whose records came from the tier."""
        self.note_fetched(size_bytes, offset_count)
        self.fetched_from_tier_bytes += size_bytes


class TopicTraffics:
    """The traffic of a bounded number of topics. For any thread."""

    def __init__(self) -> None:
        self._by_name: dict[str, TopicTraffic] = {}
        self._other = TopicTraffic()

    def of(self, topic: str) -> TopicTraffic:
        """Return the traffic of a topic, which it may share with other topics."""
        found = self._by_name.get(topic)
        if found is None:
            if len(self._by_name) >= TOPICS_MAX:
                return self._other
            found = self._by_name.setdefault(topic, TopicTraffic())
        return found

    def forget(self, topic: str) -> None:
        """Drop the counters of a topic that this node no longer has."""
        self._by_name.pop(topic, None)

    def named(self) -> Mapping[str, TopicTraffic]:
        """Return a copy of all, with ``OTHER_TOPICS`` if there are others."""
        named = dict(self._by_name)
        if len(named) >= TOPICS_MAX:
            named[OTHER_TOPICS] = self._other
        return named


class ClientMetricsTraffic:
    """The metrics that clients push, on their way to a receiver."""

    __slots__ = (
        "forwarded_bytes",
        "forwarded_count",
        "full_count",
        "instance_count",
        "refused_count",
        "unreachable_count",
        "waiting_bytes",
    )

    def __init__(self) -> None:
        self.instance_count = 0  # clients now
        self.waiting_bytes = 0  # now
        self.forwarded_count = 0  # pushes that the receiver has
        self.forwarded_bytes = 0
        # Pushes that are lost:
        self.full_count = 0  # too many were waiting
        self.refused_count = 0  # by the receiver
        self.unreachable_count = 0  # the receiver did not answer, or had no time


class ChainTraffic:
    """The objects of diskless topics that this node has written, in all of its chains."""

    __slots__ = (
        "buffered_bytes",
        "collected_count",
        "damaged_count",
        "deposed_count",
        "hedge_count",
        "kept_count",
        "object_bytes",
        "object_count",
        "puts",
        "refused_count",
        "retry_count",
        "throttled_count",
        "unfilled_count",
        "unfilled_since_s",
        "unknown_count",
    )

    def __init__(self) -> None:
        self.object_count = 0  # committed
        self.object_bytes = 0  # of records in them
        self.hedge_count = 0  # PUTs that were sent once more before the first one was answered
        self.retry_count = 0  # PUTs after one that has failed
        self.throttled_count = 0  # PUTs that the store has refused: nothing was written
        self.unknown_count = 0  # PUTs without an answer
        self.deposed_count = 0  # chains that were sealed by others, or could not go on
        self.puts = Durations()  # of those that have stored an object
        self.buffered_bytes = 0  # now: records that are not committed
        self.collected_count = 0  # objects that were deleted, because the tier has their records
        self.kept_count = 0  # now: committed objects of the current chain that are not deleted
        self.refused_count = 0  # now: partitions whose metadata were set back
        self.damaged_count = 0  # objects that an heir could not read the footer of; in each try
        self.unfilled_count = 0  # now: led partitions whose logs lack records
        self.unfilled_since_s = 0.0  # when the first of them was led, by ``time.monotonic``


class GatewayTraffic:
    """Batches that go through gateways: this node is one, and leads what others have taken."""

    __slots__ = (
        "acks",
        "batch_bytes",
        "batch_count",
        "hedge_count",
        "late_count",
        "lost_count",
        "pending_bytes",
        "referenced_bytes",
        "referenced_count",
        "refused_count",
        "waiting_count",
    )

    def __init__(self) -> None:
        # As a gateway:
        self.batch_count = 0  # taken
        self.batch_bytes = 0
        self.lost_count = 0  # of them: refused, or nobody knows
        self.acks = Durations()  # of those that a leader has committed
        self.pending_bytes = 0  # now: of batches without an answer
        self.waiting_count = 0  # now: batches that wait for a leader
        # As a leader:
        self.referenced_count = 0  # appended
        self.referenced_bytes = 0
        self.refused_count = 0
        self.hedge_count = 0  # reads that were sent once more before the first one was answered
        self.late_count = 0  # now: requests whose batches have offsets, and could not be read yet


class NodeCounters:
    """All counters of one node."""

    def __init__(self) -> None:
        self.chain = ChainTraffic()
        self.gateway = GatewayTraffic()
        self.listeners: dict[str, ListenerTraffic] = {}
        self.requests: dict[int, Durations] = {}  # by API key, when they are answered
        self.errors: dict[tuple[int, int], int] = {}  # by API key and error code
        self.topics = TopicTraffics()
        self.client_metrics: ClientMetricsTraffic | None = None  # if clients may push any
        self.throttled_count = 0  # answers that make a client wait
        self.throttled_ms = 0
        self.leadership_change_count = 0  # leaderships that this node took, or took again
        self.unclean_election_count = 0  # written by this node
        self.isr_shrink_count = 0  # of partitions led here
        self.isr_expand_count = 0
        self.wrong_suspicion_count = 0  # of other brokers, which were alive
        # Of this node's lease, written by the lease's thread alone.
        self.lease_renewals = Durations()
        self.lease_failure_count = 0
        self.cold_reads = Durations()  # waits of fetches for records from the tier
        self.denied_count = 0  # operations that ACLs deny, or would deny
        self.expired_offset_count = 0  # that retention removed from led logs
        self.scrubbed_bytes = 0
        self.damaged_segment_count = 0
        self.compaction_count = 0
        self.compaction_failure_count = 0
        self.compaction_read_bytes = 0
        self.compaction_written_bytes = 0

    def listener(self, name: str) -> ListenerTraffic:
        """Return the traffic of a listener."""
        return self.listeners.setdefault(name, ListenerTraffic())

    def request(self, api_key: int) -> Durations:
        """Return the durations of an API's requests. Only for keys of APIs that there are."""
        found = self.requests.get(api_key)
        if found is None:
            found = self.requests[api_key] = Durations()
        return found

    def note_error(self, api_key: int, error_code: int) -> None:
        """Count one error of an answer; beyond ``ERRORS_MAX`` kinds only known ones."""
        self.note_errors(api_key, error_code, 1)

    def note_errors(self, api_key: int, error_code: int, count: int) -> None:
        """Count several errors of an answer, which are the same."""
        key = (api_key, error_code)
        known = self.errors.get(key, 0)
        if known or len(self.errors) < ERRORS_MAX:
            self.errors[key] = known + count
