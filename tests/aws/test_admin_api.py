"""The admin API where the metadata is in DynamoDB."""

from __future__ import annotations

import asyncio

import pytest

from tests.aws.test_dynamodb_store import new_table
from tests.support.admin_calls import Api, an_event, open_api, put_group, register_brokers
from tools.ports import free_port


@pytest.mark.usefixtures("aws_credentials")
def test_topics_settings_groups_and_leaders_change_as_in_sqlite(
    dynamodb_local_endpoint: str,
) -> None:
    table = asyncio.run(new_table(dynamodb_local_endpoint))
    url = f"dynamodb://{table}?region=us-east-1&endpoint={dynamodb_local_endpoint}"
    with open_api(url) as api:
        api.runner.run(register_brokers(api.cluster.store))
        _administer(api)
    # Another execution environment starts with nothing, and finds what there is.
    with open_api(url) as cold:
        assert [t["name"] for t in cold.done("GET", "/topics")["topics"]] == ["t"]
        assert cold.done("GET", "/groups")["groups"] == []


def _administer(api: Api) -> None:
    api.done("POST", "/topics", {"name": "__consumer_offsets", "partition_count": 4})
    api.done("POST", "/topics", {"name": "wide", "partition_count": 200})
    assert len(api.done("GET", "/topics/wide/partitions")["partitions"]) == 200
    api.done("DELETE", "/topics/wide")
    api.done("POST", "/topics", {"name": "t", "assignments": [[1, 2], [2, 1]]})
    change = {"name": "retention.ms", "operation": "set", "value": "1000"}
    altered = api.done("PATCH", "/topics/t/configs", {"alterations": [change]})
    assert altered["configs"] == {"retention.ms": "1000"}
    put_group(api, "g")
    body = {"to": "earliest", "topics": [{"topic": "t"}]}
    assert api.done("POST", "/group/offsets/reset", body, group_id="g")["is_applied"]
    found = api.done("GET", "/group", group_id="g")["offsets"]
    assert [(o["partition"], o["offset"]) for o in found] == [(0, 0), (1, 0)]
    api.done("DELETE", "/group", group_id="g")
    assert api.done("POST", "/brokers/1/drain")["moved_count"] >= 1
    partitions = api.done("GET", "/topics/t/partitions")["partitions"]
    assert {p["leader"] for p in partitions} == {2}


@pytest.mark.usefixtures("aws_credentials")
@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/topics", None),
        ("POST", "/topics", {"name": "t"}),
        ("DELETE", "/topics/t", None),
        ("POST", "/brokers/1/drain", None),
        ("GET", "/groups", None),
        ("PUT", "/topics/t/partitions/0/reassignment", {"replicas": [1]}),
    ],
)
def test_a_store_that_is_away_is_503_and_worth_another_try(
    method: str, path: str, body: object
) -> None:
    url = f"dynamodb://t?region=us-east-1&endpoint=http://127.0.0.1:{free_port()}"
    with open_api(url) as api:
        answer = api.send(an_event(method, path, body))
        assert answer.problem == (503, "REQUEST_TIMED_OUT")
        assert answer.body["retriable"] is True
        assert answer.headers["retry-after"] == "1"
