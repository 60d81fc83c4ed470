"""The classes of messages, by API and version."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import pytest
from kio import index
from kio.index import UnknownAPIKey
from tidelog_core.api_keys import ApiKey
from tidelog_core.message_schemas import OWN_APIS, load_request_schema, load_response_schema


def test_classes_are_kios_or_tidelogs_own() -> None:
    assert load_request_schema(ApiKey.API_VERSIONS, 3) is index.load_request_schema(18, 3)
    assert load_response_schema(ApiKey.API_VERSIONS, 3) is index.load_response_schema(18, 3)
    for key, (_, request, response) in OWN_APIS.items():
        assert (load_request_schema(key, 0), load_response_schema(key, 0)) == (request, response)


def test_a_class_is_looked_up_once() -> None:
    """Every control request needs its class, and kio's lookup costs more than its decoding."""
    load_request_schema(ApiKey.API_VERSIONS, 3)
    load_response_schema(ApiKey.API_VERSIONS, 3)
    called: list[str] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            called.append(frame.f_code.co_name)

    sys.setprofile(note)
    try:
        load_request_schema(ApiKey.API_VERSIONS, 3)
        load_response_schema(ApiKey.API_VERSIONS, 3)
    finally:
        sys.setprofile(None)
    assert called == []


def test_an_unknown_api_is_refused_each_time() -> None:
    for _ in range(2):
        with pytest.raises(UnknownAPIKey):
            load_request_schema(-7, 0)
