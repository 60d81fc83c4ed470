"""Reads and writes of Spark at a listener with TLS where clients log in."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from tidelog.errors import InvalidConfig
from tidelog_spark.options.read_options import parse_options
from tidelog_spark.sink.options import parse_sink_options

from tests.support.http_answers import HttpAnswers
from tests.support.sasl_node import PASSWORD, TOPIC, USER
from tests.support.secured_node import SecuredNode

STORES = {"metadata": "sqlite:///m.db", "objects": "file:///o", "subscribe": TOPIC}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredNode]:
    folder = tmp_path_factory.mktemp("spark-login")
    node = SecuredNode(folder)
    node.metadata_store = f"sqlite://{folder}/metadata.db"
    node.object_store = f"file://{folder}/objects"
    with node:
        node.prepare()
        yield node


def listener(node: SecuredNode) -> dict[str, str]:
    return {
        "kafka.bootstrap.servers": node.sasl_address,
        "kafka.security.protocol": "SASL_SSL",
        "kafka.ssl.truststore.location": str(node.authority.trusted),
        "kafka.ssl.truststore.type": "PEM",
    }


def options(node: SecuredNode, password: str = PASSWORD) -> dict[str, str]:
    return {
        **listener(node),
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule"
        f' required username="{USER}" password="{password}";',
    }


def token_options(node: SecuredNode, endpoint: HttpAnswers) -> dict[str, str]:
    """Return options as clusters of Databricks have them for Spark's Kafka source."""
    return {
        **listener(node),
        "kafka.sasl.mechanism": "OAUTHBEARER",
        "kafka.sasl.login.callback.handler.class": "kafkashaded.org.apache.kafka.common.security"
        ".oauthbearer.secured.OAuthBearerLoginCallbackHandler",
        "kafka.sasl.oauthbearer.token.endpoint.url": f"{endpoint.url}/token",
        "kafka.sasl.jaas.config": "kafkashaded.org.apache.kafka.common.security.oauthbearer"
        '.OAuthBearerLoginModule required clientId="job" clientSecret="canary" scope="kafka";',
    }


def read(spark: SparkSession, node: SecuredNode, given: dict[str, str]) -> DataFrame:
    stores = {"metadata": node.metadata_store, "objects": node.object_store, "subscribe": TOPIC}
    return spark.read.format("tidelog").options(**stores, **given).load()


@pytest.mark.slow
def test_rows_are_written_by_a_user(spark: SparkSession, node: SecuredNode) -> None:
    rows = spark.range(10).selectExpr("cast(id as string) as value")
    to_topic = {**options(node), "topic": TOPIC}
    rows.write.format("tidelog").options(**to_topic).mode("append").save()
    assert f"User:{USER}" in {principal for _, principal, _ in node.logins()}
    wrong = {**options(node, "not-this-one"), "topic": TOPIC}
    with pytest.raises(Exception, match="Authentication failed") as refused:
        rows.write.format("tidelog").options(**wrong).mode("append").save()
    assert "not-this-one" not in str(refused.value)


@pytest.mark.slow  # ``tests/sdk/tokens`` has such logins, the test above those of Spark
def test_rows_are_written_and_read_with_tokens_of_an_issuer(
    spark: SparkSession, node: SecuredNode
) -> None:
    """Driver and tasks get tokens by themselves, one in each process."""
    answer = {"access_token": node.issuer.token("job"), "expires_in": 600}
    with HttpAnswers(lambda _: (200, json.dumps(answer))) as endpoint:
        given = token_options(node, endpoint)
        rows = spark.range(100, 120).selectExpr("cast(id as string) as value")
        rows.write.format("tidelog").options(**given, topic=TOPIC).mode("append").save()
        values = [int(row.value) for row in read(spark, node, given).collect()]
        assert sorted(value for value in values if value >= 100) == list(range(100, 120))
        assert {asked.form["scope"] for asked in endpoint.asked} == {"kafka"}
        logins = [principal for _, principal, _ in node.logins()].count("User:job")
        assert 1 <= len(endpoint.asked) < logins


def test_options_go_to_tasks_and_show_no_password(node: SecuredNode) -> None:
    given = options(node)
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
        (
            {"kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "OAUTHBEARER"},
            "OAUTHBEARER needs sasl.oauthbearer.token.endpoint.url",
        ),
        ({"kafka.sasl.oauthbearer.tokens": "x"}, "option 'kafka.sasl.oauthbearer.tokens'"),
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
