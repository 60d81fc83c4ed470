"""Options are parsed without Spark, and every problem is said at once."""

from __future__ import annotations

import json
import pickle
from uuid import UUID

import pytest
from tidelog_core.errors import InvalidConfig
from tidelog_core.model import TopicPartition
from tidelog_spark.options.option_values import (
    EARLIEST,
    LATEST,
    Assign,
    OffsetLimit,
    Subscribe,
    SubscribePattern,
    TimestampLimit,
)
from tidelog_spark.options.positions import Positions
from tidelog_spark.options.read_options import (
    NodeOptions,
    ReadOptions,
    check_options,
    parse_options,
)

STORES = {"metadata": "sqlite:///m.db", "objects": "file:///o"}


def parsed(**given: str) -> ReadOptions:
    return parse_options({**STORES, "subscribe": "a", **given})


def problems(given: dict[str, str]) -> tuple[str, ...]:
    with pytest.raises(InvalidConfig) as raised:
        parse_options(given)
    return raised.value.problems


def problem(**given: str) -> str:
    found = problems({**STORES, "subscribe": "a", **given})
    assert len(found) == 1, found
    return found[0]


def test_the_defaults_are_those_of_sparks_kafka_source():
    options = parsed()
    assert options.selection == Subscribe(("a",))
    assert options.start == OffsetLimit(EARLIEST, {})
    assert options.end == OffsetLimit(LATEST, {})
    assert options.fail_on_data_loss
    assert not options.include_headers
    assert not options.is_read_committed
    assert options.min_partitions == 0
    assert pickle.loads(pickle.dumps(options)) == options


def test_names_count_in_any_case():
    options = parsed(INCLUDEHEADERS="True", failondataloss="FALSE", Isolation="read_committed")
    assert options.include_headers
    assert not options.fail_on_data_loss
    assert options.is_read_committed


def test_every_problem_is_reported_together():
    found = problems(
        {
            "objects": "file:///o",
            "subscribe": "a",
            "assign": "no json",
            "minPartitions": "0",
            "includeHeaders": "yes",
            "startingOffset": "earliest",
            "isolation": "serializable",
            "endingTimestamp": "-4",
        }
    )
    text = "\n".join(found)
    assert len(found) == 8
    assert "unknown option 'startingOffset': did you mean 'startingOffsets'?" in text
    assert "option 'metadata' is missing: give a url like sqlite:///path" in text
    assert "give only one of the options 'assign', 'subscribe', 'subscribePattern'" in text
    assert "option 'assign' is 'no json': it must be JSON like {\"topic\": [0, 1]}" in text
    assert "option 'minPartitions' is '0': it must be a whole number of at least 1" in text
    assert "option 'includeHeaders' is 'yes': it must be true or false" in text
    assert "option 'isolation' is 'serializable': it must be one of read_uncommitted" in text
    assert "option 'endingTimestamp' is '-4': it must be a time in milliseconds" in text


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("include_headers", "did you mean 'includeHeaders'?"),
        ("startTimestamp", "did you mean 'startingTimestamp'?"),
        ("topic", "the options are asOf, assign, disklessTail"),
        ("bootstrap.servers", "is named 'kafka.bootstrap.servers'"),
        ("kafka.group.id", "is for a consumer group"),
        ("kafka.max.poll.records", "is for a Kafka client"),
        ("kafka.client.id", "needs 'kafka.bootstrap.servers'"),
        ("maxOffsetsPerTrigger", "is for streaming reads"),
        ("path", "give 'metadata' and 'objects'"),
    ],
)
def test_unknown_options_name_the_nearest_right_one(name, says):
    assert says in problem(**{name: "1"})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"a": {"0": 1}, "a": {"0": 5}}', "it names 'a' twice"),
        ('{"a": {"0": 1, "0": 5}}', "it names '0' twice"),
        ('{"a": {"0": 1, "00": 5}}', "it must be 'earliest' or JSON like"),
        ("[" * 100_000, "it must be 'earliest' or JSON like"),
    ],
    ids=["topic", "partition", "another spelling", "too deep"],
)
def test_offsets_of_which_one_would_count_are_refused(text, says):
    assert says in problem(startingOffsets=text)


def test_topics_are_selected_by_name_pattern_or_partition():
    assert parsed(subscribe=" b, a ,b").selection == Subscribe(("b", "a"))
    given = {**STORES, "assign": '{"b": [1, 0, 1], "a": [2]}'}
    assert parse_options(given).selection == Assign(
        (TopicPartition("a", 2), TopicPartition("b", 0), TopicPartition("b", 1))
    )
    given = {**STORES, "subscribePattern": "ev.*"}
    assert parse_options(given).selection == SubscribePattern("ev.*")


@pytest.mark.parametrize(
    "given",
    [
        {"subscribe": " , "},
        {"subscribePattern": "("},
        {"subscribePattern": ""},
        {"assign": "{}"},
        {"assign": '{"a": 1}'},
        {"assign": '{"a": [-1]}'},
        {"assign": '{"a": [true]}'},
        {"assign": '["a"]'},
        {},
    ],
)
def test_selections_that_select_nothing_are_refused(given):
    assert len(problems({**STORES, **given})) == 1


def test_offsets_are_one_word_or_one_number_for_each_partition():
    options = parsed(startingOffsets='{"a": {"0": 5, "1": -2}}', endingOffsets='{"a": {"0": -1}}')
    assert options.start == OffsetLimit(
        None, {TopicPartition("a", 0): 5, TopicPartition("a", 1): EARLIEST}
    )
    assert options.end == OffsetLimit(None, {TopicPartition("a", 0): LATEST})
    assert parsed(startingOffsets="Earliest").start == OffsetLimit(EARLIEST, {})
    assert parsed(endingOffsets="latest").end == OffsetLimit(LATEST, {})


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("startingOffsets", "latest"),
        ("endingOffsets", "earliest"),
        ("startingOffsets", '{"a": {"0": -1}}'),
        ("endingOffsets", '{"a": {"0": -2}}'),
        ("startingOffsets", '{"a": {"0": -3}}'),
        ("startingOffsets", '{"a": {"0": 1.5}}'),
        ("startingOffsets", '{"a": {"x": 1}}'),
        ("startingOffsets", '{"a": [1]}'),
        ("startingOffsets", "12"),
        ("startingOffsetsByTimestamp", '{"a": {"0": -5}}'),
        ("startingTimestamp", "yesterday"),
        ("startingOffsetsByTimestampStrategy", "guess"),
    ],
)
def test_limits_that_make_no_sense_name_their_option(name, text):
    assert problem(**{name: text}).startswith(f"option {name!r} is {text!r}: it must")


def test_a_time_goes_before_times_by_partition_and_those_before_offsets():
    options = parsed(
        startingTimestamp="100",
        startingOffsetsByTimestamp='{"a": {"0": 7}}',
        startingOffsets="earliest",
        endingOffsetsByTimestamp='{"a": {"0": 900}}',
        endingOffsets="latest",
    )
    assert options.start == TimestampLimit(100, {})
    assert options.end == TimestampLimit(None, {TopicPartition("a", 0): 900})


def test_a_read_that_ends_before_it_starts_is_refused():
    found = problem(startingOffsets='{"a": {"0": 5}}', endingOffsets='{"a": {"0": 4}}')
    assert found == "the read of a-0 ends at 4 and starts at 5"
    assert "ends at time 1" in problem(startingTimestamp="2", endingTimestamp="1")


def test_a_stream_starts_at_the_end_and_has_its_own_options():
    options = parse_options(
        {
            **STORES,
            "subscribe": "a",
            "maxOffsetsPerTrigger": "500",
            "minOffsetsPerTrigger": "100",
            "maxTriggerDelay": "2m",
        },
        is_stream=True,
    )
    assert options.start == OffsetLimit(LATEST, {})
    assert options.max_offsets_per_trigger == 500
    assert options.min_offsets_per_trigger == 100
    assert options.max_trigger_delay_ms == 120_000
    given = {**STORES, "subscribe": "a", "startingOffsets": '{"a": {"0": -1, "1": -2, "2": 7}}'}
    limit = parse_options(given, is_stream=True).start
    assert isinstance(limit, OffsetLimit)
    assert list(limit.by_partition.values()) == [LATEST, EARLIEST, 7]


def test_columns_are_known_before_it_is_said_whether_it_is_a_stream():
    """A problem of one kind of read alone is said when it is known which it is."""
    for given in ({"endingOffsets": "latest"}, {"maxOffsetsPerTrigger": "5"}, {}):
        both = {**STORES, "subscribe": "a", "includeHeaders": "true", **given}
        assert check_options(both).include_headers
    neither = {**STORES, "subscribe": "a", "endingOffsets": "latest", "maxTriggerDelay": "1s"}
    with pytest.raises(InvalidConfig, match="'endingOffsets' is for batch reads"):
        check_options(neither)


def test_nodes_are_named_as_for_sparks_kafka_source():
    servers = "a:9092,[::1]:9093"
    options = parsed(**{"kafka.bootstrap.servers": servers, "kafka.request.timeout.ms": "500"})
    assert options.nodes == NodeOptions(servers, request_timeout_ms=500)
    assert parsed().nodes is None
    assert "must be host:port" in problem(**{"kafka.bootstrap.servers": "a:b"})


def test_isolation_has_the_name_of_a_consumers_option_too():
    name = "kafka.isolation.level"
    assert parsed(**{name: "read_committed"}).is_read_committed
    assert "disagree" in problem(**{name: "read_committed", "isolation": "read_uncommitted"})


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [("500", 500), ("500ms", 500), ("30s", 30_000), ("15m", 900_000), ("2h", 7_200_000)],
)
def test_delays_are_written_as_spark_writes_times(text, milliseconds):
    given = {**STORES, "subscribe": "a", "maxTriggerDelay": text}
    assert parse_options(given, is_stream=True).max_trigger_delay_ms == milliseconds


def test_positions_are_the_same_text_whatever_their_order():
    topic_id = UUID(int=7)
    offsets = {TopicPartition("b", 10): 5, TopicPartition("b", 2): 6, TopicPartition("a", 0): 0}
    found = Positions(offsets, {"b": topic_id})
    text = json.dumps(found.to_json())
    ids = f'"@topicIds": {{"b": "{topic_id}"}}'
    assert text == '{"a": {"0": 0}, "b": {"2": 6, "10": 5}, ' + ids + "}"
    assert Positions.from_json(json.loads(text)) == found
    other = Positions(dict(sorted(offsets.items())), {"b": topic_id})
    assert json.dumps(other.to_json()) == text


def test_a_key_is_looked_up_with_the_white_space_around_it():
    assert parsed(key=" a ").keys == {b" a "}
    assert parsed(key=" YQ== ", keyEncoding=" base64 ").keys == {b"a"}
    assert parsed(keys='[" a", "b"] ').keys == {b" a", b"b"}


def test_white_space_around_options_of_tls_and_sasl_does_not_count():
    options = parsed(
        **{
            "kafka.bootstrap.servers": "one:9092",
            "kafka.security.protocol": "SASL_SSL\n",
            "kafka.ssl.ca.location": "/etc/ca.pem\n",
            "kafka.sasl.jaas.config": 'a.ScramLoginModule required username="u" password=" p ";\n',
            "kafka.sasl.mechanism": " SCRAM-SHA-512",
        }
    )
    assert options.nodes is not None
    assert dict(options.nodes.security) == {
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": "/etc/ca.pem",
        "sasl.jaas.config": 'a.ScramLoginModule required username="u" password=" p ";',
        "sasl.mechanism": "SCRAM-SHA-512",
    }


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize(
    "name", ["sasl.password", "ssl.key.password", "sasl.oauthbearer.client.secret"]
)
def test_a_secret_that_ends_in_a_line_break_is_refused(name: str, end: str):
    """It is that of a file, and was stripped by earlier versions."""
    with pytest.raises(InvalidConfig, match=f"option 'kafka.{name}' ends in a line break") as told:
        parsed(**{"kafka.bootstrap.servers": "one:9092", f"kafka.{name}": f"canary{end}"})
    assert "canary" not in str(told.value)


def test_a_password_may_end_with_a_space():
    options = parsed(
        **{
            "kafka.bootstrap.servers": "one:9092",
            "kafka.security.protocol": "SASL_SSL",
            "kafka.sasl.mechanism": "PLAIN",
            "kafka.sasl.username": "u",
            "kafka.sasl.password": " secret ",
        }
    )
    assert options.nodes is not None
    assert dict(options.nodes.security)["sasl.password"] == " secret "
