"""The options of a write, parsed once; every problem is reported together.

Names and meanings are those of Spark's Kafka sink: ``topic``, ``includeHeaders``, and
``kafka.`` before the name of a producer's config. A name counts in any case.
Source: Spark's Kafka integration guide, the producer configs of Kafka.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructType,
    TimestampType,
)
from tidelog.errors import InvalidConfig
from tidelog.options import COMPRESSION, parse_bootstrap
from tidelog_core.config import INT32_MAX, parse_bool
from tidelog_core.records.batch import CompressionType
from tidelog_core.records.codecs import LEVELS

WRITE_ID_SIZE_MAX = 200  # characters; it becomes part of transactional ids and of a group's


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOptions:
    """What the record batches of a write are like."""

    topic: str | None = None  # goes before the rows' own
    include_headers: bool = True  # of rows that have a column of them
    compression: CompressionType = CompressionType.NONE
    compression_level: int | None = None
    batch_size_bytes: int = 512 * 1024  # before compression; a larger record goes alone
    record_size_bytes_max: int = 1024 * 1024  # with all that a batch needs around it


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """What one write was asked for."""

    bootstrap_servers: str
    client_id: str = "tidelog-spark"
    batches: BatchOptions = field(default_factory=BatchOptions)
    buffer_memory_bytes: int = 32 * 1024 * 1024
    # As long as a broker allows by default: a micro-batch, or a task of a batch write, has to
    # end within it.
    transaction_timeout_ms: int = 900_000
    request_timeout_ms: int = 30_000
    delivery_timeout_ms: int = 120_000
    max_block_ms: int = 60_000
    write_id: str | None = None  # of a batch write that can be repeated; None: of its own


def parse_sink_options(given: Mapping[str, str]) -> SinkOptions:
    """Return the options of a write. Raises ``InvalidConfig`` with every problem at once."""
    problems: list[str] = []
    found: dict[str, Any] = {}
    for name, text in given.items():
        lower = name.lower()
        if lower in _PASSED_OVER:
            continue
        if lower not in _PARSERS:
            problems.append(_not_here(name))
            continue
        try:
            found[lower] = _PARSERS[lower](str(text).strip())
        except ValueError as error:
            problems.append(f"option {_SPELLED.get(lower, name)!r} is {text!r}: it {error}")
        except InvalidConfig as error:
            problems += error.problems
    if not any(name.lower() == "kafka.bootstrap.servers" for name in given):
        problems.append("option 'kafka.bootstrap.servers' is missing: give host:port,...")
    request_ms = found.get("kafka.request.timeout.ms", 30_000)
    if found.get("kafka.delivery.timeout.ms", 120_000) < request_ms:
        problems.append(
            "option 'kafka.delivery.timeout.ms' must be at least 'kafka.request.timeout.ms',"
            f" {request_ms}"
        )
    if problems:
        raise InvalidConfig(problems)
    codec: CompressionType = found.get("kafka.compression.type", CompressionType.NONE)
    defaults, batch_defaults = SinkOptions(bootstrap_servers=""), BatchOptions()
    request_size = found.get("kafka.max.request.size", batch_defaults.record_size_bytes_max)
    return SinkOptions(
        bootstrap_servers=found["kafka.bootstrap.servers"],
        client_id=found.get("kafka.client.id", defaults.client_id),
        batches=BatchOptions(
            topic=found.get("topic"),
            include_headers=found.get("includeheaders", True),
            compression=codec,
            compression_level=found.get(f"kafka.compression.{codec.name.lower()}.level"),
            batch_size_bytes=min(
                found.get("kafka.batch.size", batch_defaults.batch_size_bytes), request_size // 2
            ),
            record_size_bytes_max=request_size,
        ),
        buffer_memory_bytes=found.get("kafka.buffer.memory", defaults.buffer_memory_bytes),
        transaction_timeout_ms=found.get(
            "kafka.transaction.timeout.ms", defaults.transaction_timeout_ms
        ),
        request_timeout_ms=request_ms,
        delivery_timeout_ms=found.get("kafka.delivery.timeout.ms", defaults.delivery_timeout_ms),
        max_block_ms=found.get("kafka.max.block.ms", defaults.max_block_ms),
        write_id=found.get("writeid"),
    )


def check_columns(schema: StructType, options: SinkOptions) -> None:
    """Raise ``InvalidConfig`` with everything that keeps the columns from being records."""
    kinds = {field.name: field.dataType for field in schema}
    problems = [
        f"column {name!r} is {kinds[name].simpleString()}; it must be {allowed}"
        for name, (allowed, is_right) in _COLUMNS.items()
        if name in kinds and not is_right(kinds[name])
    ]
    if "value" not in kinds:
        problems.append("column 'value' is missing: it is what the records hold")
    if "topic" not in kinds and options.batches.topic is None:
        problems.append("give the option 'topic', or a column 'topic' that says it for every row")
    if problems:
        raise InvalidConfig(problems)


def _is_binary(kind: DataType) -> bool:
    return isinstance(kind, BinaryType | StringType)


def _is_headers(kind: DataType) -> bool:
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return False
    fields = [(field.name, type(field.dataType)) for field in kind.elementType]
    return fields == [("key", StringType), ("value", BinaryType)]


_COLUMNS: Mapping[str, tuple[str, Callable[[DataType], bool]]] = {
    "topic": ("string", lambda kind: isinstance(kind, StringType)),
    "partition": ("int", lambda kind: isinstance(kind, IntegerType)),
    "key": ("string or binary", _is_binary),
    "value": ("string or binary", _is_binary),
    "headers": ("array<struct<key:string,value:binary>>", _is_headers),
    "timestamp": ("timestamp", lambda kind: isinstance(kind, TimestampType)),
}


def _bootstrap(text: str) -> str:
    parse_bootstrap(text)
    return text


def _topic(text: str) -> str:
    if not text:
        raise ValueError("must name a topic")
    return text


def _write_id(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9._-]+", text) or len(text) > WRITE_ID_SIZE_MAX:
        raise ValueError(
            f"must be of letters, digits, '.', '_' and '-', at most {WRITE_ID_SIZE_MAX} of them"
        )
    return text


def _codec(text: str) -> CompressionType:
    if text.lower() not in COMPRESSION:
        raise ValueError(f"must be one of {', '.join(COMPRESSION)}")
    return COMPRESSION[text.lower()]


def _level(codec: CompressionType) -> Callable[[str], int]:
    levels, _ = LEVELS[codec]

    def parse(text: str) -> int:
        if not re.fullmatch(r"-?\d{1,9}", text) or int(text) not in levels:
            raise ValueError(f"must be a number from {levels[0]} to {levels[-1]}")
        return int(text)

    return parse


def _positive(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) <= INT32_MAX:
        raise ValueError("must be a whole number of at least 1")
    return int(text)


def _just(*right: str) -> Callable[[str], str]:
    """Return the parser of an option that the sink leaves no choice with."""

    def parse(text: str) -> str:
        if text.lower() not in right:
            raise ValueError(f"must be {right[0]} for rows to be written exactly once")
        return text

    return parse


_PARSERS: Mapping[str, Callable[[str], object]] = {
    "kafka.bootstrap.servers": _bootstrap,
    "topic": _topic,
    "includeheaders": parse_bool,
    "writeid": _write_id,
    "kafka.client.id": str,
    "kafka.compression.type": _codec,
    **{f"kafka.compression.{c.name.lower()}.level": _level(c) for c in LEVELS},
    "kafka.batch.size": _positive,
    "kafka.max.request.size": _positive,
    "kafka.buffer.memory": _positive,
    "kafka.transaction.timeout.ms": _positive,
    "kafka.request.timeout.ms": _positive,
    "kafka.delivery.timeout.ms": _positive,
    "kafka.max.block.ms": _positive,
    "kafka.acks": _just("all", "-1"),
    "kafka.enable.idempotence": _just("true"),
}
_SPELLED = {"includeheaders": "includeHeaders", "writeid": "writeId"}
_NAMES = tuple(_SPELLED.get(name, name) for name in _PARSERS)
# What Spark itself adds to the options of a stream.
_PASSED_OVER = frozenset({"checkpointlocation", "queryname"})
# Known from Spark's Kafka sink or its source, without a meaning here: why.
_NOT_HERE = {
    "path": "is not where records go: give 'topic'",
    "metadata": "is for reading: a write goes to 'kafka.bootstrap.servers'",
    "objects": "is for reading: a write goes to 'kafka.bootstrap.servers'",
    "subscribe": "is for reading: give 'topic'",
    "bootstrap.servers": "is called 'kafka.bootstrap.servers'",
    "kafka.transactional.id": "is the sink's own: each task has one",
    "kafka.key.serializer": "is not for a choice: keys are bytes or strings",
    "kafka.value.serializer": "is not for a choice: values are bytes or strings",
    "kafka.linger.ms": "is not needed: batches are as full as there are rows",
    "kafka.partitioner.class": "is not for a choice: give a column 'partition'",
    "compression": "is called 'kafka.compression.type'",
}


def _not_here(name: str) -> str:
    lower = name.lower()
    if lower in _NOT_HERE:
        return f"option {name!r} {_NOT_HERE[lower]}"
    near = difflib.get_close_matches(lower, _PARSERS, n=1, cutoff=0.6)
    if near:
        return f"unknown option {name!r}: did you mean {_SPELLED.get(near[0], near[0])!r}?"
    return f"unknown option {name!r}: the options are {', '.join(_NAMES)}"
