"""Reads and writes of Spark at a listener with TLS where clients log in."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from tidelog.errors import InvalidConfig
from tidelog_spark.options import parse_options
from tidelog_spark.sink.options import parse_sink_options

from tests.support.certificates import Authority
from tests.support.sasl_node import PASSWORD, TOPIC, USER, SaslNode

STORES = {"metadata": "sqlite:///m.db", "objects": "file:///o", "subscribe": TOPIC}


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[SaslNode]:
    folder = tmp_path_factory.mktemp("spark-login")
    node = SaslNode(
        folder / "node",
        listener_security_protocol_map="OPEN:PLAINTEXT,SASL:SASL_SSL",
        ssl_keystore_location=str(authority.node_pem()),
    )
    node.metadata_store = f"sqlite://{folder}/metadata.db"
    node.object_store = f"file://{folder}/objects"
    with node:
        node.prepare()
        yield node


def options(node: SaslNode, authority: Authority, password: str = PASSWORD) -> dict[str, str]:
    return {
        "kafka.bootstrap.servers": node.sasl_address,
        "kafka.security.protocol": "SASL_SSL",
        "kafka.ssl.truststore.location": str(authority.trusted),
        "kafka.ssl.truststore.type": "PEM",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule"
        f' required username="{USER}" password="{password}";',
    }


def read(spark: SparkSession, node: SaslNode, authority: Authority) -> DataFrame:
    stores = {"metadata": node.metadata_store, "objects": node.object_store, "subscribe": TOPIC}
    return spark.read.format("tidelog").options(**stores, **options(node, authority)).load()


def test_rows_are_written_and_read_by_a_user(
    spark: SparkSession, node: SaslNode, authority: Authority
) -> None:
    rows = spark.range(10).selectExpr("cast(id as string) as value")
    to_topic = {**options(node, authority), "topic": TOPIC}
    rows.write.format("tidelog").options(**to_topic).mode("append").save()
    values = sorted(int(row.value) for row in read(spark, node, authority).collect())
    assert values == list(range(10))
    wrong = {**options(node, authority, "not-this-one"), "topic": TOPIC}
    with pytest.raises(Exception, match="Authentication failed") as refused:
        rows.write.format("tidelog").options(**wrong).mode("append").save()
    assert "not-this-one" not in str(refused.value)


def test_options_go_to_tasks_and_show_no_password(node: SaslNode, authority: Authority) -> None:
    given = options(node, authority)
    reading = parse_options({**STORES, **given}).nodes
    writing = parse_sink_options(given)
    assert reading is not None
    for one in (reading, writing):
        assert pickle.loads(pickle.dumps(one)).security == one.security
        assert dict(one.security)["sasl.mechanism"] == "SCRAM-SHA-512"
        assert PASSWORD not in repr(one)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"kafka.security.protocol": "TLS"}, "security.protocol must be one of PLAINTEXT"),
        ({"kafka.security.protocol": "SASL_SSL"}, "the SASL mechanism must be one of"),
        ({"kafka.ssl.keystore.type": "JKS"}, "ssl.keystore.type must be PEM"),
        ({"kafka.ssl.keystore.password": "x"}, "option 'kafka.ssl.keystore.password'"),
    ],
)
def test_wrong_options_are_refused_when_they_are_given(given: dict[str, str], problem: str) -> None:
    servers = {"kafka.bootstrap.servers": "localhost:9092"}
    with pytest.raises(InvalidConfig, match=problem):
        parse_options({**STORES, **servers, **given})
    with pytest.raises(InvalidConfig, match=problem):
        parse_sink_options({**servers, **given})


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    from tidelog_spark.clients import client_factory

    given = {
        "kafka.bootstrap.servers": "localhost:9092",
        "kafka.security.protocol": "SSL",
        "kafka.ssl.truststore.location": str(tmp_path / "none.pem"),
    }
    with pytest.raises(InvalidConfig, match="must be PEM files"):
        client_factory(parse_sink_options(given))
