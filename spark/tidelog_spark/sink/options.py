"""The options of a write, parsed once; all problems are reported together.

Names and meanings are those of Spark's Kafka sink: ``topic``, ``includeHeaders``, and
producer configs with the prefix ``kafka.``. Names are case-insensitive.
Source: Spark's Kafka integration guide, the producer configs of Kafka.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tidelog.errors import InvalidConfig
from tidelog.options import COMPRESSION
from tidelog.producing.batch_options import BatchOptions
from tidelog_core.admin.names import TOPIC_NAME_LENGTH_MAX, validate_topic_name
from tidelog_core.errors import InvalidTopic
from tidelog_core.records.batch import CompressionType
from tidelog_core.records.codecs import LEVELS
from tidelog_core.setting import parse_bool

from tidelog_spark.options import option_values as values
from tidelog_spark.options.first_node import FIRST_NODE_MS
from tidelog_spark.options.option_reader import OptionReader
from tidelog_spark.options.security_options import SECURITY_OPTIONS, SecurityOptions, parse_security

WRITE_ID_SIZE_MAX = 200  # characters; it becomes part of transactional ids and a group id


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """The options of one write."""

    bootstrap_servers: str
    client_id: str = "tidelog-spark"
    batches: BatchOptions = field(default_factory=BatchOptions)
    buffer_memory_bytes: int = 32 * 1024 * 1024
    # A broker's default maximum: a micro-batch, or a task of a batch write, must end within
    # this time.
    transaction_timeout_ms: int = 900_000
    request_timeout_ms: int = 30_000
    first_node_timeout_ms: int = FIRST_NODE_MS  # no longer than a request's
    delivery_timeout_ms: int = 120_000
    max_block_ms: int = 60_000
    security: SecurityOptions = field(default=(), repr=False)
    write_id: str | None = None  # of a repeatable batch write; None: a new one


def parse_sink_options(given: Mapping[str, str]) -> SinkOptions:
    """Return the options of a write. Raises ``InvalidConfig`` with every problem at once."""
    accepted = {name: text for name, text in given.items() if name.lower() not in _IGNORED}
    reader = OptionReader(accepted, OPTION_NAMES)
    reader.report_unknown_names(_UNSUPPORTED.get)
    for name, right in _FIXED.items():
        reader.parsed(name, _only(*right), default=None)

    def count(name: str, default: int) -> int:
        return reader.parsed(name, values.parse_positive, default=default)

    defaults = SinkOptions(
        bootstrap_servers=reader.required(
            "kafka.bootstrap.servers", values.parse_servers, example="host:port,..."
        )
    )
    batches = _batches(reader, count)
    record_size = batches.record_size_bytes_max
    options = SinkOptions(
        bootstrap_servers=defaults.bootstrap_servers,
        client_id=reader.parsed("kafka.client.id", str, default=defaults.client_id),
        batches=batches,
        buffer_memory_bytes=count(
            "kafka.buffer.memory", max(defaults.buffer_memory_bytes, record_size)
        ),
        transaction_timeout_ms=count(
            "kafka.transaction.timeout.ms", defaults.transaction_timeout_ms
        ),
        request_timeout_ms=count("kafka.request.timeout.ms", defaults.request_timeout_ms),
        delivery_timeout_ms=count("kafka.delivery.timeout.ms", defaults.delivery_timeout_ms),
        max_block_ms=count("kafka.max.block.ms", defaults.max_block_ms),
        security=parse_security(reader),
        write_id=reader.parsed("writeId", _write_id, default=None),
    )
    if options.buffer_memory_bytes < record_size:
        reader.problems.append(
            f"option 'kafka.buffer.memory' must be at least 'kafka.max.request.size', {record_size}"
        )
    if options.delivery_timeout_ms < options.request_timeout_ms:
        reader.problems.append(
            "option 'kafka.delivery.timeout.ms' must be at least 'kafka.request.timeout.ms',"
            f" {options.request_timeout_ms}"
        )
    if reader.problems:
        raise InvalidConfig(reader.problems)
    return options


def _batches(reader: OptionReader, count: Callable[[str, int], int]) -> BatchOptions:
    defaults = BatchOptions()
    codec = reader.choice("kafka.compression.type", COMPRESSION, default=defaults.compression)
    # Levels of other codecs are checked too.
    levels = {
        one: reader.parsed(name, _level(one), default=None) for one, name in _LEVEL_NAMES.items()
    }
    request_size = count("kafka.max.request.size", defaults.record_size_bytes_max)
    return BatchOptions(
        topic=reader.parsed("topic", _topic, default=None),
        include_headers=reader.parsed(
            "includeHeaders", parse_bool, default=defaults.include_headers
        ),
        compression=codec,
        compression_level=levels.get(codec),
        batch_size_bytes=min(
            count("kafka.batch.size", defaults.batch_size_bytes), max(1, request_size // 2)
        ),
        record_size_bytes_max=request_size,
    )


def _topic(text: str) -> str:
    try:
        validate_topic_name(text)
    except InvalidTopic:
        raise ValueError(
            "must be the name of a topic: of letters, digits, '.', '_' and '-', at most"
            f" {TOPIC_NAME_LENGTH_MAX} of them"
        ) from None
    return text


def _write_id(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9._-]+", text) or len(text) > WRITE_ID_SIZE_MAX:
        raise ValueError(
            f"must be of letters, digits, '.', '_' and '-', at most {WRITE_ID_SIZE_MAX} of them"
        )
    return text


def _level(codec: CompressionType) -> Callable[[str], int]:
    levels, _ = LEVELS[codec]

    def parse(text: str) -> int:
        if not re.fullmatch(r"-?\d{1,9}", text) or int(text) not in levels:
            raise ValueError(f"must be a number from {levels[0]} to {levels[-1]}")
        return int(text)

    return parse


def _only(*right: str) -> Callable[[str], str]:
    """Return the parser of an option with only one allowed value."""

    def parse(text: str) -> str:
        if text.lower() not in right:
            raise ValueError(f"must be {right[0]} for rows to be written exactly once")
        return text

    return parse


_LEVEL_NAMES = {codec: f"kafka.compression.{codec.name.lower()}.level" for codec in LEVELS}
# Options with only one allowed value.
_FIXED = {"kafka.acks": ("all", "-1"), "kafka.enable.idempotence": ("true",)}
OPTION_NAMES = (
    "kafka.bootstrap.servers",
    "topic",
    "includeHeaders",
    "writeId",
    "kafka.client.id",
    "kafka.compression.type",
    *_LEVEL_NAMES.values(),
    "kafka.batch.size",
    "kafka.max.request.size",
    "kafka.buffer.memory",
    "kafka.transaction.timeout.ms",
    "kafka.request.timeout.ms",
    "kafka.delivery.timeout.ms",
    "kafka.max.block.ms",
    *SECURITY_OPTIONS,
    *_FIXED,
)
# Options that Spark itself adds to a stream.
_IGNORED = frozenset({"checkpointlocation", "queryname"})
# Options of Spark's Kafka sink or source that are not supported here, with the reason.
_UNSUPPORTED = {
    "path": "is not supported: give 'topic'",
    "metadata": "is for reading: a write goes to 'kafka.bootstrap.servers'",
    "objects": "is for reading: a write goes to 'kafka.bootstrap.servers'",
    "subscribe": "is for reading: give 'topic'",
    "bootstrap.servers": "is named 'kafka.bootstrap.servers' here",
    "kafka.transactional.id": "cannot be set: each task has its own",
    "kafka.key.serializer": "cannot be set: keys are bytes or strings",
    "kafka.value.serializer": "cannot be set: values are bytes or strings",
    "kafka.linger.ms": "is not needed: a batch waits for no further rows",
    "kafka.retries": "is not needed: requests are repeated until 'kafka.delivery.timeout.ms'",
    "kafka.max.in.flight.requests.per.connection": "cannot be set: rows keep their order",
    "kafka.partitioner.class": "cannot be set: give a column 'partition'",
    "compression": "is named 'kafka.compression.type' here",
}
