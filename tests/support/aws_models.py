"""Requests judged by AWS's own descriptions of its services, which come with botocore.

botocore's clients check types and required fields; the services check patterns, lengths and
choices as well, which the descriptions have too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import botocore.session
from botocore.model import ServiceModel, Shape
from botocore.validate import ParamValidator


@cache
def _service(name: str) -> ServiceModel:
    return botocore.session.get_session().get_service_model(name)


def problems_of_request(service: str, operation: str, request: Mapping[str, Any]) -> list[str]:
    """Return why the service would refuse the request; empty if it would not."""
    shape = _service(service).operation_model(operation).input_shape
    report = ParamValidator().validate(request, shape)
    if report.has_errors():
        return [str(report.generate_report())]
    return list(_problems(shape, request, operation))


def _problems(shape: Shape | Any, value: Any, where: str) -> Iterator[str]:
    if shape.type_name == "structure":
        for name, one in value.items():
            if name not in shape.members:
                yield f"{where} has no {name}"
            else:
                yield from _problems(shape.members[name], one, f"{where}.{name}")
        return
    if shape.type_name == "map":
        for name, one in value.items():
            yield from _problems(shape.key, name, where)
            yield from _problems(shape.value, one, f"{where}.{name}")
        return
    if shape.type_name == "list":
        for number, one in enumerate(value):
            yield from _problems(shape.member, one, f"{where}[{number}]")
    yield from _limits(shape.metadata, value, where)


def _limits(limits: Mapping[str, Any], value: Any, where: str) -> Iterator[str]:
    if "enum" in limits and value not in limits["enum"]:
        yield f"{where} is {value!r}, not one of {limits['enum']}"
    size = value if isinstance(value, int | float) else len(value)
    if not limits.get("min", size) <= size <= limits.get("max", size):
        yield f"{where} is {value!r}, not from {limits.get('min')} to {limits.get('max')}"
    if "pattern" in limits and not re.fullmatch(limits["pattern"], value, re.DOTALL):
        yield f"{where} is {value!r}, not as {limits['pattern']}"
