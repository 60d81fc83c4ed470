"""Requests from and answers to API Gateway's HTTP APIs.

Source: API Gateway developer guide, «Lambda integrations for HTTP APIs», payload format
2.0. It contains the path percent-decoded.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tidelog_functions.admin.problems import HttpProblem

PAYLOAD_VERSION = "2.0"
DEFAULT_STAGE = "$default"
BODY_SIZE_BYTES_MAX = 1 << 20
ANSWER_SIZE_BYTES_MAX = 4 << 20  # Lambda's limit is 6 MB, with quotes of the body escaped
JSON_TYPE = "application/json"
PROBLEM_TYPE = "application/problem+json"


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request; only its form is checked."""

    method: str
    path: str
    query: str  # percent-encoded
    content_type: str | None
    body: bytes
    identity: str | None  # the ARN of the IAM identity that API Gateway has authenticated
    host: str = ""  # the address of the caller
    accept: str = ""  # the types that the caller takes


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """An answer, to be written as JSON."""

    body: Mapping[str, Any]
    status: int = 200
    content_type: str = JSON_TYPE
    headers: Mapping[str, str] = field(default_factory=dict)


def parse_event(event: object) -> HttpRequest:
    """Return the request in the event. Raises ``HttpProblem``."""
    if not isinstance(event, Mapping) or event.get("version") != PAYLOAD_VERSION:
        raise HttpProblem(
            400, "The event is not of an API Gateway HTTP API with payload format 2.0."
        )
    context = _mapping(event, "requestContext")
    http = _mapping(context, "http")
    headers = {name.lower(): value for name, value in _mapping(event, "headers").items()}
    content_type, accept = headers.get("content-type"), headers.get("accept")
    return HttpRequest(
        method=_text(http, "method"),
        path=_without_stage(_text(event, "rawPath"), context.get("stage")),
        query=_text(event, "rawQueryString"),
        content_type=content_type if isinstance(content_type, str) else None,
        body=_body(event),
        identity=_identity(context),
        host=_text(http, "sourceIp"),
        accept=accept if isinstance(accept, str) else "",
    )


def to_event(answer: HttpAnswer) -> dict[str, Any]:
    """Return the answer in API Gateway's form.

    Raises ``HttpProblem`` if it is too large for Lambda.
    """
    body = json.dumps(answer.body, separators=(",", ":"))
    if len(body) > ANSWER_SIZE_BYTES_MAX:
        raise HttpProblem(
            422,
            f"The answer would have {len(body)} bytes; at most {ANSWER_SIZE_BYTES_MAX} are sent."
            " Request fewer items at a time.",
        )
    return {
        "statusCode": answer.status,
        "headers": {"content-type": answer.content_type, **answer.headers},
        "body": body,
        "isBase64Encoded": False,
    }


def _identity(context: Mapping[str, Any]) -> str | None:
    authorizer = context.get("authorizer")
    iam = authorizer.get("iam") if isinstance(authorizer, Mapping) else None
    arn = iam.get("userArn") if isinstance(iam, Mapping) else None
    return arn if isinstance(arn, str) and arn else None


def _without_stage(path: str, stage: object) -> str:
    if isinstance(stage, str) and stage != DEFAULT_STAGE and f"{path}/".startswith(f"/{stage}/"):
        return path[len(stage) + 1 :] or "/"
    return path


def _body(event: Mapping[str, Any]) -> bytes:
    text = event.get("body")
    if text is None:
        return b""
    if not isinstance(text, str):
        raise HttpProblem(400, "The event's body is not text.")
    try:
        if event.get("isBase64Encoded"):
            body = base64.b64decode(text, validate=True)
        else:
            body = text.encode()
    except (binascii.Error, ValueError) as error:
        raise HttpProblem(400, f"The body cannot be decoded: {error}.") from None
    if len(body) > BODY_SIZE_BYTES_MAX:
        raise HttpProblem(
            413, f"The body has {len(body)} bytes; at most {BODY_SIZE_BYTES_MAX} are allowed."
        )
    return body


def _mapping(event: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = event.get(name)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise HttpProblem(400, f"The event's {name} is not an object.")
    return value


def _text(event: Mapping[str, Any], name: str) -> str:
    value = event.get(name, "")
    if not isinstance(value, str):
        raise HttpProblem(400, f"The event's {name} is not text.")
    return value
