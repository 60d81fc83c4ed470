"""The options of a read, parsed once; all problems are reported together.

Names and meanings are those of Spark's Kafka source; names are case-insensitive. If
several options set the start, ``startingTimestamp`` has precedence over
``startingOffsetsByTimestamp``, and that over ``startingOffsets``; the same at the end.
Source: Spark's Kafka integration guide.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from uuid import UUID

from tidelog_core.errors import InvalidConfig
from tidelog_core.setting import parse_bool

from tidelog_spark.options import option_values as values
from tidelog_spark.options.bookmarks import Bookmark
from tidelog_spark.options.first_node import FIRST_NODE_MS
from tidelog_spark.options.option_reader import OptionReader
from tidelog_spark.options.option_values import (
    EARLIEST,
    LATEST,
    Assign,
    Limit,
    OffsetLimit,
    Selection,
    Subscribe,
    TimestampLimit,
)
from tidelog_spark.options.security_options import SECURITY_OPTIONS, SecurityOptions, parse_security

MAX_TRIGGER_DELAY_MS = 15 * 60_000
REQUEST_TIMEOUT_MS = 30_000
CLIENT_ID = "tidelog-spark"

_SELECTIONS: Mapping[str, Callable[[str], Selection]] = {
    "assign": values.parse_assign,
    "subscribe": values.parse_subscribe,
    "subscribePattern": values.parse_pattern,
}
_ISOLATIONS = {"read_uncommitted": False, "read_committed": True}
_KEY_ENCODINGS: Mapping[str, Callable[[str], bytes]] = {
    "utf-8": values.decode_utf8,
    "hex": values.decode_hex,
    "base64": values.decode_base64,
}
_START_NAMES = (
    "startingOffsets",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "startingTimestamp",
)
_BATCH_NAMES = ("asOf", "endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp")
_STREAM_NAMES = ("maxOffsetsPerTrigger", "maxTriggerDelay", "minOffsetsPerTrigger")
_NODE_NAMES = (
    "kafka.bootstrap.servers",
    "kafka.client.id",
    "kafka.request.timeout.ms",
    *SECURITY_OPTIONS,
)
OPTION_NAMES = tuple(
    sorted(
        (
            *_SELECTIONS,
            *_START_NAMES,
            *_BATCH_NAMES,
            *_STREAM_NAMES,
            *_NODE_NAMES,
            "disklessTail",
            "failOnDataLoss",
            "includeHeaders",
            "isolation",
            "kafka.isolation.level",
            "key",
            "keyEncoding",
            "keys",
            "metadata",
            "minPartitions",
            "objects",
        ),
        key=str.lower,
    )
)
# Options that asOf contains.
_PARTS_OF_BOOKMARK = (*_SELECTIONS, *_START_NAMES, *(n for n in _BATCH_NAMES if n != "asOf"))
# Options of Spark's Kafka source that are not supported here, with the reason.
_UNSUPPORTED = {
    "bootstrap.servers": "is named 'kafka.bootstrap.servers' here",
    "fetchoffset.numretries": "is not needed: retriable errors are retried until"
    " 'kafka.request.timeout.ms'",
    "fetchoffset.retryintervalms": "is not needed: retriable errors are retried until"
    " 'kafka.request.timeout.ms'",
    "groupidprefix": "is for a consumer group; a read has none, Spark keeps the offsets",
    "kafka.group.id": "is for a consumer group; a read has none, Spark keeps the offsets",
    "kafkaconsumer.polltimeoutms": "is named 'kafka.request.timeout.ms' here",
    "maxrecordsperpartition": "is not supported: for more tasks give 'minPartitions'",
    "path": "is not supported: give 'metadata' and 'objects', and topics with 'subscribe'",
}


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """Options for connecting to the nodes, which have records that are not tiered."""

    bootstrap_servers: str
    client_id: str = CLIENT_ID
    request_timeout_ms: int = REQUEST_TIMEOUT_MS
    first_node_timeout_ms: int = FIRST_NODE_MS  # no longer than a request's
    security: SecurityOptions = field(default=(), repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """The options of one read."""

    metadata: str  # url of the metadata store
    objects: str  # url of the object store
    selection: Selection
    start: Limit
    end: Limit
    # If no record is new enough for the start: an error, or the end of the log.
    is_late_start_latest: bool = False
    min_partitions: int = 0  # 0: as many as the size requires
    include_headers: bool = False
    fail_on_data_loss: bool = True
    is_read_committed: bool = False
    keys: frozenset[bytes] | None = None  # only rows with one of these keys; None: all rows
    nodes: NodeOptions | None = None  # None: the log ends where the bucket's records end
    # Whether records of diskless topics that are not tiered are read from chains, without nodes.
    is_tail_read: bool = True
    topic_ids: Mapping[str, UUID] = field(default_factory=dict)  # that topics must have
    # Only for streams.
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_ms: int = MAX_TRIGGER_DELAY_MS


def parse_options(given: Mapping[str, str], *, is_stream: bool = False) -> ReadOptions:
    """Return the options of a batch read or a stream.

    Raises ``InvalidConfig`` with every problem at once.
    """
    reader = OptionReader(given, OPTION_NAMES)
    reader.report_unknown_names(partial(_refusal, is_stream=is_stream))
    is_bookmarked = not is_stream and reader.has("asOf")
    limits = _bookmarked(reader) if is_bookmarked else _limits(reader, is_stream=is_stream)
    if is_stream:
        end: Limit = OffsetLimit(LATEST, {})
        limits = (*limits[:2], end)
    selection, start, end = limits
    options = ReadOptions(
        metadata=reader.required(
            "metadata", str, example="a url like sqlite:///path or dynamodb://table"
        ),
        objects=reader.required(
            "objects", str, example="a url like file:///path or s3://bucket/prefix"
        ),
        selection=selection,
        start=start,
        end=end,
        is_late_start_latest=reader.choice(
            "startingOffsetsByTimestampStrategy", {"error": False, "latest": True}, default=False
        ),
        min_partitions=reader.parsed("minPartitions", values.parse_positive, default=0),
        include_headers=reader.parsed("includeHeaders", parse_bool, default=False),
        fail_on_data_loss=reader.parsed("failOnDataLoss", parse_bool, default=True),
        is_read_committed=_is_read_committed(reader, is_bookmarked=is_bookmarked),
        keys=_keys(reader),
        nodes=_nodes(reader),
        is_tail_read=reader.parsed("disklessTail", parse_bool, default=True),
        topic_ids=_topic_ids(start, end),
        max_offsets_per_trigger=reader.parsed(
            "maxOffsetsPerTrigger", values.parse_row_count, default=None
        ),
        min_offsets_per_trigger=reader.parsed(
            "minOffsetsPerTrigger", values.parse_row_count, default=None
        ),
        max_trigger_delay_ms=reader.parsed(
            "maxTriggerDelay", values.parse_duration_ms, default=MAX_TRIGGER_DELAY_MS
        ),
    )
    reader.problems += [*_end_before_start(options), *_limit_problems(options)]
    if reader.problems:
        raise InvalidConfig(reader.problems)
    return options


def check_options(given: Mapping[str, str]) -> ReadOptions:
    """Return the options of a batch read or of a stream, depending on which they are valid for.

    Spark asks for the columns before it decides between them. Raises ``InvalidConfig`` if the
    options are valid for neither.
    """
    is_stream = any(name.lower() in map(str.lower, _STREAM_NAMES) for name in given)
    try:
        return parse_options(given, is_stream=is_stream)
    except InvalidConfig as refused:
        try:
            return parse_options(given, is_stream=not is_stream)
        except InvalidConfig:
            raise refused from None


def _refusal(lower: str, *, is_stream: bool) -> str | None:
    """Return why this read does not accept a name, or None if there is no known reason."""
    names, what = (
        (_BATCH_NAMES, "is for batch reads: a stream has no end")
        if is_stream
        else (_STREAM_NAMES, "is for streaming reads")
    )
    if lower in map(str.lower, names):
        return what
    if lower in _UNSUPPORTED:
        return _UNSUPPORTED[lower]
    clients = (*_NODE_NAMES, "kafka.isolation.level")
    if lower.startswith("kafka.") and lower not in clients:
        return (
            "is for a Kafka client, which is not used; the only options of that kind are"
            f" {', '.join(map(repr, clients))}"
        )
    return None


def _limits(reader: OptionReader, *, is_stream: bool) -> tuple[Selection, Limit, Limit]:
    first = LATEST if is_stream else EARLIEST
    return (
        _selection(reader),
        _limit(reader, "starting", default=first, is_stream=is_stream),
        _limit(reader, "ending", default=LATEST, is_stream=False),
    )


def _bookmarked(reader: OptionReader) -> tuple[Selection, Limit, Limit]:
    for name in _PARTS_OF_BOOKMARK:
        if reader.has(name):
            reader.problems.append(f"option {name!r} is part of 'asOf' already: leave it out")
    bookmark = reader.parsed("asOf", Bookmark.from_text, default=None)
    if bookmark is None:
        return Subscribe(()), OffsetLimit(EARLIEST, {}), OffsetLimit(LATEST, {})
    return (
        Assign(tuple(sorted(bookmark.end.offsets))),
        OffsetLimit(None, bookmark.start.offsets),
        OffsetLimit(None, bookmark.end.offsets, bookmark.end.topic_ids),
    )


def _selection(reader: OptionReader) -> Selection:
    nothing: Selection = Subscribe(())
    # All of them are parsed, so that all problems are reported together.
    found = [
        reader.parsed(name, parse, default=nothing)
        for name, parse in _SELECTIONS.items()
        if reader.has(name)
    ]
    if len(found) != 1:
        how_many = "only one" if found else "one"
        names = ", ".join(map(repr, _SELECTIONS))
        reader.problems.append(f"give {how_many} of the options {names}")
        return nothing
    return found[0]


def _limit(reader: OptionReader, side: str, *, default: int, is_stream: bool) -> Limit:
    fallback: Limit = OffsetLimit(default, {})
    parse = values.offsets_parser(side, is_stream=is_stream)
    by_offset = reader.parsed(f"{side}Offsets", parse, default=fallback)
    by_times = reader.parsed(f"{side}OffsetsByTimestamp", values.parse_timestamps, default=fallback)
    by_time = reader.parsed(f"{side}Timestamp", values.parse_timestamp, default=fallback)
    if reader.has(f"{side}Timestamp"):
        return by_time
    return by_times if reader.has(f"{side}OffsetsByTimestamp") else by_offset


def _topic_ids(*limits: Limit) -> Mapping[str, UUID]:
    found: dict[str, UUID] = {}
    for limit in limits:
        if isinstance(limit, OffsetLimit):
            found |= limit.topic_ids
    return found


def _is_read_committed(reader: OptionReader, *, is_bookmarked: bool) -> bool:
    bookmarked = None
    if is_bookmarked:
        try:
            bookmarked = Bookmark.from_text(reader.text("asOf")).is_read_committed
        except ValueError:
            return False  # The problem is reported where the limits are parsed.
    found = {
        name: reader.choice(name, _ISOLATIONS, default=False)
        for name in ("isolation", "kafka.isolation.level")
        if reader.has(name)
    }
    if len(set(found.values())) > 1:
        reader.problems.append("options 'isolation' and 'kafka.isolation.level' disagree")
    if bookmarked is None:
        return any(found.values())
    if found and bookmarked not in found.values():
        was = "read_committed" if bookmarked else "read_uncommitted"
        reader.problems.append(f"option 'asOf' has isolation {was}: leave the other option out")
    return bookmarked


def _keys(reader: OptionReader) -> frozenset[bytes] | None:
    decode = reader.choice("keyEncoding", _KEY_ENCODINGS, default=values.decode_utf8)
    if reader.has("key") and reader.has("keys"):
        reader.problems.append("give only one of the options 'key', 'keys'")
    if reader.has("keyEncoding") and not (reader.has("key") or reader.has("keys")):
        reader.problems.append("option 'keyEncoding' needs 'key' or 'keys'")

    def one(text: str) -> frozenset[bytes]:
        is_text = decode is values.decode_utf8
        return frozenset({decode(reader.whole_text("key") if is_text else text)})

    def several(text: str) -> frozenset[bytes]:
        return frozenset(map(decode, values.parse_keys(text)))

    if reader.has("keys"):
        return reader.parsed("keys", several, default=None)
    return reader.parsed("key", one, default=None)


def _nodes(reader: OptionReader) -> NodeOptions | None:
    if not reader.has("kafka.bootstrap.servers"):
        reader.problems += [
            f"option {name!r} needs 'kafka.bootstrap.servers'"
            for name in _NODE_NAMES
            if reader.has(name)
        ]
        return None
    return NodeOptions(
        bootstrap_servers=reader.parsed(
            "kafka.bootstrap.servers", values.parse_servers, default=""
        ),
        client_id=reader.parsed("kafka.client.id", str, default=CLIENT_ID),
        request_timeout_ms=reader.parsed(
            "kafka.request.timeout.ms", values.parse_positive, default=REQUEST_TIMEOUT_MS
        ),
        security=parse_security(reader),
    )


def _limit_problems(options: ReadOptions) -> list[str]:
    least, most = options.min_offsets_per_trigger, options.max_offsets_per_trigger
    if least is not None and most is not None and least > most:
        return [
            f"option 'minOffsetsPerTrigger' is {least}, more than 'maxOffsetsPerTrigger', {most}"
        ]
    return []


def _end_before_start(options: ReadOptions) -> list[str]:
    """Return the problem of an end before the start, as far as the options alone show it."""
    start, end = options.start, options.end
    if type(start) is not type(end):
        return []
    if start.everywhere is not None and end.everywhere is not None:
        if isinstance(start, TimestampLimit) and start.everywhere > end.everywhere:
            return [f"the read ends at time {end.everywhere} and starts at {start.everywhere}"]
        return []
    return [
        f"the read of {partition} ends at {end.by_partition[partition]}"
        f" and starts at {start.by_partition[partition]}"
        for partition in sorted(start.by_partition.keys() & end.by_partition.keys())
        if 0 <= end.by_partition[partition] < start.by_partition[partition]
    ]
