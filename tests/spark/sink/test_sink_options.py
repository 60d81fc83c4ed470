"""The sink's options and columns: what is taken, and how all that is wrong is told at once."""

from __future__ import annotations

import pytest
from pyspark.sql.types import StructType
from tidelog.errors import InvalidConfig
from tidelog_core.records.batch import CompressionType
from tidelog_spark.sink.columns import check_columns
from tidelog_spark.sink.options import parse_sink_options
from tidelog_spark.sink.writers import batch_writer, stream_writer

SERVERS = {"kafka.bootstrap.servers": "one:9092,two"}


def problems(schema: str | None = None, **given: str) -> list[str]:
    """Return what is wrong with the options, names with underscores for dots, and the columns."""
    dotted = {name.replace("_", "."): text for name, text in given.items()}
    try:
        options = parse_sink_options({**SERVERS, **dotted})
        if schema is not None:
            check_columns(StructType.fromDDL(schema), options)
    except InvalidConfig as error:
        return list(error.problems)
    return []


def test_options_are_those_of_a_kafka_producer_in_any_case():
    options = parse_sink_options(
        {
            "Kafka.Bootstrap.Servers": "one:9092,two",
            "TOPIC": "t",
            "includeHeaders": "false",
            "kafka.compression.type": "ZSTD",
            "kafka.compression.zstd.level": "-3",
            "kafka.compression.gzip.level": "9",
            "kafka.batch.size": "65536",
            "kafka.transaction.timeout.ms": "60000",
            "kafka.acks": "all",
            "checkpointlocation": "/somewhere",
        }
    )
    assert options.bootstrap_servers == "one:9092,two"
    assert options.transaction_timeout_ms == 60_000
    batches = options.batches
    assert (batches.topic, batches.include_headers) == ("t", False)
    assert (batches.compression, batches.compression_level) == (CompressionType.ZSTD, -3)
    assert batches.batch_size_bytes == 65_536


def test_a_topic_is_not_overwritten_and_a_stream_has_no_write_id():
    value = StructType().add("value", "string")
    with pytest.raises(InvalidConfig, match="a topic cannot be overwritten"):
        batch_writer({**SERVERS, "topic": "t"}, value, is_overwrite=True)
    with pytest.raises(InvalidConfig, match="'writeId' is for df"):
        stream_writer({**SERVERS, "topic": "t", "writeId": "w"}, value)


def test_a_batch_is_no_larger_than_a_request():
    options = parse_sink_options({**SERVERS, "kafka.max.request.size": "100000"})
    assert options.batches.batch_size_bytes == 50_000
    assert options.batches.record_size_bytes_max == 100_000
    least = parse_sink_options({**SERVERS, "kafka.max.request.size": "1"})
    assert least.batches.batch_size_bytes == 1


def test_memory_has_room_for_the_largest_record():
    options = parse_sink_options({**SERVERS, "kafka.max.request.size": "100000000"})
    assert options.buffer_memory_bytes == 100_000_000


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("topics", "t", "did you mean 'topic'?"),
        ("kafka_compresion_type", "lz4", "did you mean 'kafka.compression.type'?"),
        ("something", "t", "the options are kafka.bootstrap.servers, topic, includeHeaders"),
        ("subscribe", "t", "is for reading"),
        ("kafka_transactional_id", "t", "cannot be set: each task has its own"),
        ("kafka_acks", "1", "must be all"),
        ("topic", "orders, payments", "it must be the name of a topic: of letters"),
        ("topic", "a" * 250, "at most 249 of them"),
        ("topic", "", "must be the name of a topic"),
        ("kafka_buffer_memory", "1000", "at least 'kafka.max.request.size', 1048576"),
        ("kafka_retries", "5", "requests are repeated until 'kafka.delivery.timeout.ms'"),
        ("kafka_enable_idempotence", "false", "must be true"),
        ("kafka_compression_type", "lzma", "must be one of none, gzip, snappy, lz4, zstd"),
        ("kafka_compression_zstd_level", "23", "must be a number from -131072 to 22"),
        ("kafka_batch_size", "0", "must be a whole number of at least 1"),
        ("includeheaders", "perhaps", "option 'includeHeaders' is 'perhaps'"),
        ("writeid", "a/b", "option 'writeId' is 'a/b': it must be of letters"),
        ("kafka_delivery_timeout_ms", "1000", "at least 'kafka.request.timeout.ms', 30000"),
        ("kafka_bootstrap_servers", "one:port", "'one:port' is not host:port"),
    ],
)
def test_a_wrong_option_is_named_with_the_right_one(name, text, problem):
    (found,) = problems(**{name: text})
    assert problem in found


def test_all_that_is_wrong_is_told_at_once():
    found = problems(topik="t", kafka_acks="0", kafka_linger_ms="1", kafka_batch_size="x")
    assert len(found) == 4


@pytest.mark.usefixtures("spark")  # It parses the columns.
@pytest.mark.parametrize(
    ("columns", "found"),
    [
        ("key string", ["column 'value' is missing: add it, with the records' values"]),
        ("value long, key date", ["column 'key' is date", "column 'value' is bigint"]),
        ("value binary, partition long", ["column 'partition' is bigint; it must be int"]),
        ("value binary, headers map<string,binary>", ["it must be array<struct<key:string"]),
        ("value binary, headers array<struct<key:string,value:string>>", ["it must be array"]),
        ("value binary, timestamp long", ["column 'timestamp' is bigint; it must be timestamp"]),
        (
            "Value binary, KEY string",
            ["'Value' must be named 'value'", "'KEY' must be named 'key'"],
        ),
        ("value binary, Topic string", ["column 'Topic' must be named 'topic'"]),
        ("value binary, key int, key string", ["there are several columns 'key'"]),
    ],
)
def test_columns_that_cannot_be_records_are_named(columns, found):
    told = problems(columns, topic="t")
    assert len(told) == len(found)
    for expected in found:
        assert any(expected in problem for problem in told)


@pytest.mark.usefixtures("spark")
def test_a_topic_is_needed_from_somewhere():
    assert problems("value string") == [
        "give the option 'topic', or a column 'topic' with every row's topic"
    ]
    schema = "topic string, value string, key binary, partition int, more map<string,date>"
    check_columns(StructType.fromDDL(schema), parse_sink_options(SERVERS))
