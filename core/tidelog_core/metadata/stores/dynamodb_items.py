"""Encodes items, conditions and transactions for DynamoDB. Pure: sends nothing.

One table, partition key ``pk`` (the collection), sort key ``sk`` (the key):

    pk, sk       the item's id
    v            its version
    body         the body as JSON, without an integer ``value``
    value        that integer, where the body has one: ``increment`` adds to it in place
    w            the id of the last write

    #cluster   / version             n: the cluster version
    #changelog / <version, 20 digits>  keys: see ``changelog_entry``; w: the commit's id

Collections of the store's users never start with ``#``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidelog_core.errors import CorruptItem
from tidelog_core.metadata.store import (
    ABSENT,
    ANY_VERSION,
    LAST_KEY,
    UNREADABLE_VERSION,
    Body,
    Check,
    ClusterVersion,
    Item,
    ItemKey,
    KeyRange,
    Write,
)
from tidelog_core.metadata.stores.changelog_entry import decode_keys, encode_keys
from tidelog_core.metadata.stores.commit import decode_body, encode_body

CLUSTER_VERSION = ItemKey("#cluster", "version")
CHANGELOG_COLLECTION = "#changelog"

Attributes = Mapping[str, Any]  # attribute name -> typed value, as botocore has them

TABLE_DEFINITION: Mapping[str, object] = {
    "AttributeDefinitions": [
        {"AttributeName": "pk", "AttributeType": "S"},
        {"AttributeName": "sk", "AttributeType": "S"},
    ],
    "KeySchema": [
        {"AttributeName": "pk", "KeyType": "HASH"},
        {"AttributeName": "sk", "KeyType": "RANGE"},
    ],
    "BillingMode": "PAY_PER_REQUEST",
}


@dataclass(frozen=True, slots=True)
class StoredItem:
    """An item with the id of the write that made it."""

    item: Item
    write_id: str | None


def key_of(id: ItemKey) -> dict[str, Any]:
    """Return the primary key."""
    return {"pk": {"S": id.collection}, "sk": {"S": id.key}}


def changelog_key(version: int) -> ItemKey:
    """Return the key of one version's changelog entry."""
    return ItemKey(CHANGELOG_COLLECTION, f"{version:020d}")


def parse_item(attributes: Attributes) -> StoredItem:
    """Return the item, with a ``problem`` if it cannot be read."""
    id = ItemKey(attributes["pk"]["S"], attributes["sk"]["S"])  # noqa: A001
    write_id = attributes.get("w", {}).get("S")
    version = UNREADABLE_VERSION
    try:
        version = int(attributes["v"]["N"])
        body = dict(decode_body(id, attributes.get("body", {"S": "{}"})["S"]))
        if "value" in attributes:
            body["value"] = int(attributes["value"]["N"])
    except (KeyError, ValueError) as error:
        return StoredItem(Item(id, version, {}, f"attributes: {error!r}"), write_id)
    except CorruptItem as error:
        return StoredItem(Item(id, version, {}, error.problem), write_id)
    return StoredItem(Item(id, version, body), write_id)


def parse_changelog(attributes: Attributes) -> tuple[ItemKey, ...]:
    """Return the item keys of one version. Raises ``CorruptItem``."""
    try:
        return decode_keys(attributes["keys"]["S"])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        key = (attributes["pk"]["S"], attributes["sk"]["S"])
        raise CorruptItem(key, f"attributes: {error!r}") from error


def listing_query(collection: str, prefix: str, keys: KeyRange) -> dict[str, Any] | None:
    """Return the arguments of ``Query`` for a listing, ``None`` if no key can match.

    The upper bound is exclusive, but DynamoDB's condition for both bounds includes it. In
    ascending order, the caller leaves out an item whose key is the end; in descending order,
    the query starts below that key.
    """
    start, end = keys.bounds(prefix)
    if end is not None and start >= end:
        return None
    if end is not None and start and not keys.is_descending:
        is_prefix = (start, end) == (prefix, prefix + LAST_KEY)
        return _prefix_query(collection, prefix) if is_prefix else _between(collection, start, end)
    query: dict[str, Any] = {
        "KeyConditionExpression": "pk = :pk",
        "ExpressionAttributeValues": {":pk": {"S": collection}},
    }
    if start:
        query["KeyConditionExpression"] += " AND sk >= :start"
        query["ExpressionAttributeValues"][":start"] = {"S": start}
    elif end is not None and not keys.is_descending:
        query["KeyConditionExpression"] += " AND sk < :end"
        query["ExpressionAttributeValues"][":end"] = {"S": end}
    if keys.is_descending:
        query["ScanIndexForward"] = False
        if end is not None:
            query["ExclusiveStartKey"] = key_of(ItemKey(collection, end))
    return query


def changelog_query(first: int, last: int) -> dict[str, Any]:
    """Return the arguments of ``Query`` for the changelog of the versions, both included."""
    return _between(CHANGELOG_COLLECTION, changelog_key(first).key, changelog_key(last).key)


def batch_get_request(table: str, ids: Iterable[ItemKey]) -> dict[str, Any]:
    """Return the ``RequestItems`` of ``BatchGetItem``; no key may come twice."""
    return {table: {"Keys": [key_of(item_id) for item_id in ids], "ConsistentRead": True}}


def put_request(table: str, write: Write, write_id: str) -> dict[str, Any]:
    """Return the arguments of ``UpdateItem``, or of ``Update`` in a transaction."""
    assert write.body is not None
    text, value = _split(write.id, write.body)
    names = {"#body": "body", "#v": "v", "#w": "w", "#value": "value"}
    values: dict[str, Any] = {":body": {"S": text}, ":w": {"S": write_id}, ":one": {"N": "1"}}
    if value is None:
        expression = "SET #body = :body, #w = :w REMOVE #value ADD #v :one"
    else:
        expression = "SET #body = :body, #w = :w, #value = :value ADD #v :one"
        values[":value"] = {"N": str(value)}
    condition, condition_values = _condition(write.expected_version)
    request: dict[str, Any] = {
        "TableName": table,
        "Key": key_of(write.id),
        "UpdateExpression": expression,
        "ExpressionAttributeNames": names,
        "ExpressionAttributeValues": {**values, **condition_values},
    }
    if condition is not None:
        request["ConditionExpression"] = condition
    return request


def delete_request(table: str, write: Write) -> dict[str, Any]:
    """Return the arguments of ``DeleteItem``, or of ``Delete`` in a transaction."""
    request: dict[str, Any] = {"TableName": table, "Key": key_of(write.id)}
    return request | _condition_part(write.expected_version)


def increment_request(table: str, id: ItemKey, by: int) -> dict[str, Any]:
    """Return the arguments of the ``UpdateItem`` that adds to a counter."""
    return {
        "TableName": table,
        "Key": key_of(id),
        "UpdateExpression": "ADD #value :by, #v :one",
        "ExpressionAttributeNames": {"#value": "value", "#v": "v"},
        "ExpressionAttributeValues": {":by": {"N": str(by)}, ":one": {"N": "1"}},
        "ReturnValues": "UPDATED_NEW",
    }


def transaction(
    table: str, writes: Sequence[Write], checks: Sequence[Check], write_id: str
) -> tuple[list[dict[str, Any]], list[ItemKey]]:
    """Return the actions of a transaction and, in the same order, the items they are of."""
    actions: list[dict[str, Any]] = []
    ids: list[ItemKey] = []
    for write in writes:
        if write.body is None:
            actions.append({"Delete": delete_request(table, write)})
        else:
            actions.append({"Update": put_request(table, write, write_id)})
        ids.append(write.id)
    for check in checks:
        if check.expected_version != ANY_VERSION:
            request = {"TableName": table, "Key": key_of(check.id)}
            actions.append({"ConditionCheck": request | _condition_part(check.expected_version)})
            ids.append(check.id)
    return actions, ids


def logging_actions(
    table: str,
    keys: Sequence[ItemKey],
    *,
    after: ClusterVersion,
    write_id: str,
    changelog_length: int,
) -> list[dict[str, Any]]:
    """Return the actions that take the cluster from version ``after`` to the next one."""
    version = after + 1
    condition = "#n = :after" if after else "attribute_not_exists(#n)"
    values = {":next": {"N": str(version)}}
    if after:
        values[":after"] = {"N": str(after)}
    advance = {
        "TableName": table,
        "Key": key_of(CLUSTER_VERSION),
        "UpdateExpression": "SET #n = :next",
        "ConditionExpression": condition,
        "ExpressionAttributeNames": {"#n": "n"},
        "ExpressionAttributeValues": values,
    }
    entry = {
        **key_of(changelog_key(version)),
        "keys": {"S": encode_keys(keys)},
        "w": {"S": write_id},
    }
    actions: list[dict[str, Any]] = [
        {"Update": advance},
        {"Put": {"TableName": table, "Item": entry}},
    ]
    if version > changelog_length:
        oldest = key_of(changelog_key(version - changelog_length))
        actions.append({"Delete": {"TableName": table, "Key": oldest}})
    return actions


def _between(collection: str, first: str, last: str) -> dict[str, Any]:
    return {
        "KeyConditionExpression": "pk = :pk AND sk BETWEEN :first AND :last",
        "ExpressionAttributeValues": {
            ":pk": {"S": collection},
            ":first": {"S": first},
            ":last": {"S": last},
        },
    }


def _prefix_query(collection: str, prefix: str) -> dict[str, Any]:
    return {
        "KeyConditionExpression": "pk = :pk AND begins_with(sk, :prefix)",
        "ExpressionAttributeValues": {":pk": {"S": collection}, ":prefix": {"S": prefix}},
    }


def _split(id: ItemKey, body: Body) -> tuple[str, int | None]:
    value = body.get("value")
    if isinstance(value, int) and not isinstance(value, bool):
        return encode_body(id, {name: body[name] for name in body if name != "value"}), value
    return encode_body(id, body), None


def _condition(expected_version: int) -> tuple[str | None, dict[str, Any]]:
    if expected_version == ANY_VERSION:
        return None, {}
    if expected_version == ABSENT:
        # By its key: a damaged item may lack any other attribute.
        return "attribute_not_exists(pk)", {}
    return "#v = :expected", {":expected": {"N": str(expected_version)}}


def _condition_part(expected_version: int) -> dict[str, Any]:
    condition, values = _condition(expected_version)
    if condition is None:
        return {}
    if not values:
        return {"ConditionExpression": condition}
    return {
        "ConditionExpression": condition,
        "ExpressionAttributeNames": {"#v": "v"},
        "ExpressionAttributeValues": values,
    }
