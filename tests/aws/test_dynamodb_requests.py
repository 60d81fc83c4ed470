"""The requests to DynamoDB are well formed, and its failures are told apart.

moto checks shapes and expressions here, one request at a time. It loses concurrent
updates, so it proves nothing about transactions.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from aiohttp import ClientOSError
from botocore.exceptions import (
    ClientError,
    ConnectionClosedError,
    EndpointConnectionError,
    NoCredentialsError,
    ReadTimeoutError,
)
from moto import mock_aws
from tidelog_core.metadata.store import (
    ABSENT,
    ANY_VERSION,
    UNREADABLE_VERSION,
    Check,
    ClusterVersion,
    Item,
    ItemKey,
    Write,
)
from tidelog_core.metadata.stores import dynamodb_items as items
from tidelog_core.metadata.stores.dynamodb_failures import Outcome, classify

TABLE = "tidelog"
A, B = ItemKey("letters", "a"), ItemKey("letters", "b")


@pytest.fixture
def client(aws_credentials: None) -> Iterator[Any]:
    with mock_aws():
        client = boto3.client("dynamodb", region_name="us-east-1")
        client.create_table(TableName=TABLE, **items.TABLE_DEFINITION)
        yield client
        client.close()


def read(client: Any, key: ItemKey) -> items.StoredItem:
    return items.parse_item(client.get_item(TableName=TABLE, Key=items.key_of(key))["Item"])


def test_a_put_by_itself_creates_updates_and_takes_the_value_out(client: Any) -> None:
    client.update_item(**items.put_request(TABLE, Write(A, {"value": 7, "x": "y"}, ABSENT), "w1"))
    assert read(client, A) == items.StoredItem(Item(A, 1, {"value": 7, "x": "y"}), "w1")
    client.update_item(**items.put_request(TABLE, Write(A, {"x": None}, 1), "w2"))
    assert read(client, A) == items.StoredItem(Item(A, 2, {"x": None}), "w2")
    with pytest.raises(ClientError) as raised:
        client.update_item(**items.put_request(TABLE, Write(A, {}, 1), "w3"))
    assert classify(raised.value).outcome is Outcome.CONDITION_FAILED
    client.update_item(**items.put_request(TABLE, Write(A, {}, ANY_VERSION), "w4"))
    client.delete_item(**items.delete_request(TABLE, Write(A, None, 3)))
    assert "Item" not in client.get_item(TableName=TABLE, Key=items.key_of(A))


def test_an_increment_creates_and_adds(client: Any) -> None:
    for expected in (5, 10):
        answer = client.update_item(**items.increment_request(TABLE, A, 5))
        assert answer["Attributes"]["value"] == {"N": str(expected)}
    assert read(client, A).item == Item(A, 2, {"value": 10})


def test_a_transaction_writes_checks_logs_and_prunes(client: Any) -> None:
    for version in range(3):
        writes = [Write(A, {"n": version}, version)]
        actions, ids = items.transaction(TABLE, writes, [Check(B, ABSENT)], "w")
        assert ids == [A, B]
        step = items.logging_actions(
            TABLE, [A], after=ClusterVersion(version), write_id="w", changelog_length=2
        )
        client.transact_write_items(TransactItems=actions + step, ClientRequestToken=str(version))
    assert read(client, A).item == Item(A, 3, {"n": 2})
    entries = [
        client.get_item(TableName=TABLE, Key=items.key_of(items.changelog_key(version))).get("Item")
        for version in (1, 2, 3)
    ]
    assert entries[0] is None
    assert [items.parse_changelog(entry) for entry in entries[1:]] == [(A,), (A,)]


def test_a_canceled_transaction_says_which_actions_failed(client: Any) -> None:
    actions, _ = items.transaction(
        TABLE, [Write(A, {}, ABSENT), Write(B, {}, 4)], [Check(ItemKey("x", "y"), 1)], "w"
    )
    with pytest.raises(ClientError) as raised:
        client.transact_write_items(TransactItems=actions)
    failure = classify(raised.value)
    assert (failure.outcome, failure.failed_actions) == (Outcome.CONDITION_FAILED, (1, 2))


@pytest.mark.parametrize(
    "broken",
    [
        {"body": {"S": "{}"}},
        {"v": {"N": "one"}, "body": {"S": "{}"}},
        {"v": {"N": "1"}, "body": {"S": "{"}},
        {"v": {"N": "1"}, "body": {"S": "[]"}},
        {"v": {"N": "1"}, "value": {"S": "x"}},
    ],
)
def test_an_item_that_is_none_has_a_problem(broken: dict[str, Any]) -> None:
    found = items.parse_item({**items.key_of(A), **broken}).item
    assert (found.id, found.body) == (A, {})
    assert found.problem
    assert found.version == (1 if broken.get("v") == {"N": "1"} else UNREADABLE_VERSION)


def answered(code: str, status: int = 400, reasons: list[str] | None = None) -> ClientError:
    response: dict[str, Any] = {
        "Error": {"Code": code, "Message": "why"},
        "ResponseMetadata": {"HTTPStatusCode": status},
    }
    if reasons is not None:
        response["CancellationReasons"] = [{"Code": reason} for reason in reasons]
    return ClientError(response, "TransactWriteItems")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (answered("ConditionalCheckFailedException"), Outcome.CONDITION_FAILED),
        (answered("TransactionConflictException"), Outcome.NOT_NOW),
        (answered("ThrottlingException"), Outcome.NOT_NOW),
        (answered("ProvisionedThroughputExceededException"), Outcome.NOT_NOW),
        (answered("RequestLimitExceeded"), Outcome.NOT_NOW),
        (answered("TransactionInProgressException"), Outcome.UNKNOWN),
        (answered("InternalServerError", 500), Outcome.UNKNOWN),
        (answered("Whatever", 503), Outcome.UNKNOWN),
        (answered("ValidationException"), Outcome.REFUSED),
        (answered("ResourceNotFoundException"), Outcome.REFUSED),
        (answered("AccessDeniedException"), Outcome.REFUSED),
        (
            answered("TransactionCanceledException", reasons=["None", "TransactionConflict"]),
            Outcome.NOT_NOW,
        ),
        (
            answered("TransactionCanceledException", reasons=["ThrottlingError", "None"]),
            Outcome.NOT_NOW,
        ),
        (
            answered(
                "TransactionCanceledException",
                reasons=["TransactionConflict", "ConditionalCheckFailed"],
            ),
            Outcome.CONDITION_FAILED,
        ),
        (answered("TransactionCanceledException", reasons=["ValidationError"]), Outcome.REFUSED),
        (EndpointConnectionError(endpoint_url="x"), Outcome.UNREACHABLE),
        (
            EndpointConnectionError(endpoint_url="x", error=ClientOSError(104, "reset by peer")),
            Outcome.UNKNOWN,
        ),
        (ReadTimeoutError(endpoint_url="x"), Outcome.UNKNOWN),
        (ConnectionClosedError(endpoint_url="x"), Outcome.UNKNOWN),
        (NoCredentialsError(), Outcome.REFUSED),
    ],
)
def test_failures_are_told_apart(error: Any, outcome: Outcome) -> None:
    assert classify(error).outcome is outcome
