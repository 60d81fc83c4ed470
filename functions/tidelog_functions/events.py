"""Parses the events that functions are called with, from JSON. No I/O.

    EventBridge, from S3      {"source": "aws.s3", "detail-type": "Object Created",
                               "detail": {"bucket": {"name"}, "object": {"key"}}}
    EventBridge, schedule     {"source": "aws.events" | "aws.scheduler",
                               "detail-type": "Scheduled Event"}
    S3 notification           {"Records": [{"eventSource": "aws:s3", "eventName":
                               "ObjectCreated:…", "s3": {"bucket", "object": {"key"}}}]}
    SQS                       {"Records": [{"eventSource": "aws:sqs", "body": one of the above}]}

Keys in S3 notifications are URL-encoded, keys in EventBridge events are not.
Source: Amazon S3 user guide, event message structure; EventBridge reference; Lambda with SQS.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast
from urllib.parse import unquote_plus

from tidelog_core.errors import ErrorCode, TidelogError

SCHEDULERS = ("aws.events", "aws.scheduler")  # compared with values of any type
NESTING_MAX = 2  # an event in an SQS message in the function's event


class UnknownEvent(TidelogError):
    """The function was called with an event that it does not handle. It has done nothing."""

    code = ErrorCode.invalid_request

    def __init__(self, problem: str) -> None:
        super().__init__(f"unknown event: {problem}")
        self.problem = problem


@dataclass(frozen=True, slots=True)
class ObjectCreated:
    """An object was written. ``key`` is the complete key in the bucket."""

    bucket: str
    key: str


@dataclass(frozen=True, slots=True)
class Scheduled:
    """A schedule was due. ``detail`` is the rest of the schedule's input."""

    detail: Mapping[str, object]


def parse_event(event: object, *, nesting: int = 0) -> list[ObjectCreated | Scheduled]:
    """Return the events, in order. Raises ``UnknownEvent`` with the problem."""
    fields = _mapping(event, "the event")
    if "Records" in fields:
        found: list[ObjectCreated | Scheduled] = []
        for number, record in enumerate(_sequence(fields["Records"], "Records")):
            found += _parse_record(_mapping(record, f"Records[{number}]"), number, nesting)
        return found
    if fields.get("Event") == "s3:TestEvent":
        return []  # S3 sends it once, after notifications are configured.
    source, kind = fields.get("source"), fields.get("detail-type")
    if source in SCHEDULERS and kind == "Scheduled Event":
        detail = fields.get("detail")
        return [Scheduled(detail if isinstance(detail, dict) else {})]
    if source == "aws.s3" and kind == "Object Created":
        detail = _mapping(fields.get("detail"), "detail")
        return [_object_created(detail, "detail")]
    if source is None and kind is None:
        names = ", ".join(sorted(map(str, fields))) or "none"
        raise UnknownEvent(f"neither Records nor source and detail-type; its fields: {names}")
    raise UnknownEvent(f"source {source!r} with detail-type {kind!r}")


def _parse_record(
    record: Mapping[str, object], number: int, nesting: int
) -> list[ObjectCreated | Scheduled]:
    where, source = f"Records[{number}]", record.get("eventSource")
    if source == "aws:sqs":
        if nesting + 1 >= NESTING_MAX:
            raise UnknownEvent(f"{where} is a message in a message in a message")
        try:
            body: object = json.loads(_text(record.get("body"), f"{where}.body"))
        except (ValueError, RecursionError) as error:
            raise UnknownEvent(f"{where}.body is not JSON: {error}") from None
        return parse_event(body, nesting=nesting + 1)
    name = record.get("eventName")
    if source != "aws:s3" or not str(name).startswith("ObjectCreated:"):
        raise UnknownEvent(f"{where} has eventSource {source!r} and eventName {name!r}")
    created = _object_created(_mapping(record.get("s3"), f"{where}.s3"), f"{where}.s3")
    return [ObjectCreated(created.bucket, unquote_plus(created.key))]


def _object_created(fields: Mapping[str, object], where: str) -> ObjectCreated:
    bucket = _mapping(fields.get("bucket"), f"{where}.bucket")
    found = _mapping(fields.get("object"), f"{where}.object")
    return ObjectCreated(
        _text(bucket.get("name"), f"{where}.bucket.name"),
        _text(found.get("key"), f"{where}.object.key"),
    )


def _mapping(value: object, where: str) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise UnknownEvent(f"{where} must be an object, not {_kind(value)}")
    return cast("Mapping[str, object]", value)


def _sequence(value: object, where: str) -> Sequence[object]:
    if not isinstance(value, list):
        raise UnknownEvent(f"{where} must be a list, not {_kind(value)}")
    return value


def _text(value: object, where: str) -> str:
    if not isinstance(value, str) or not value:
        raise UnknownEvent(f"{where} must be a string, not {_kind(value)}")
    return value


def _kind(value: object) -> str:
    return "absent" if value is None else f"{value!r:.80}"
