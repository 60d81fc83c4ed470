"""The codecs written by hand against bytes that no client should send."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any

import pytest
from kio.index import load_request_schema, load_response_schema
from tidelog_node.follower import wire as follower
from tidelog_node.wire import fetch, produce, share_fetch
from tidelog_node.wire.primitives import PARSE_ERRORS

from tests.support.message_bytes import broken, joined, random_message

MEMORY_OF_A_BYTE = 100
MEMORY_OF_A_MESSAGE = 32_768

Parse = Callable[[memoryview], Any]


def codecs() -> list[tuple[str, Any, Parse]]:
    """Return every version of every codec, with the schema of what it reads."""
    found: list[tuple[str, Any, Parse]] = []
    for module, parse in (
        (produce, produce.parse_produce),
        (fetch, fetch.parse_fetch),
        (share_fetch, share_fetch.parse_share_fetch),
    ):
        for version in range(module.VERSION_MIN, module.VERSION_MAX + 1):
            schema = load_request_schema(module.API_KEY, version)
            found.append((f"{schema.__name__}-{version}", schema, bind(parse, version)))
    answer: Any = load_response_schema(follower.API_KEY, follower.VERSION)
    found.append(("follower", answer, read_answer))
    return found


def bind(parse: Callable[[memoryview, int, int], Any], version: int) -> Parse:
    return lambda body: parse(body, 0, version)


def read_answer(body: memoryview) -> Any:
    """Read a follower's answer behind its header: correlation id, no tags."""
    return follower.parse_follower_fetch(memoryview(bytes(5) + bytes(body)))


CODECS = codecs()
NAMES = [name for name, _, _ in CODECS]
each_codec = pytest.mark.parametrize(
    ("schema", "parse"), [(schema, parse) for _, schema, parse in CODECS], ids=NAMES
)


@pytest.fixture
def random(request: pytest.FixtureRequest) -> Random:
    """Random numbers that can be had again."""
    seed = Random().getrandbits(32)
    print(f"seed {seed} of {request.node.name}")
    return Random(seed)


@each_codec
def test_tagged_fields_that_nobody_knows_change_nothing(
    schema: Any, parse: Parse, random: Random
) -> None:
    for _ in range(20):
        seed = random.getrandbits(32)
        plain = memoryview(joined(random_message(schema, Random(seed), nulls=0)))
        strange = joined(random_message(schema, Random(seed), nulls=0, strangers=random))
        assert parse(memoryview(strange)) == parse(plain), strange.hex()


@each_codec
def test_no_broken_request_costs_more_than_an_error(
    schema: Any, parse: Parse, random: Random
) -> None:
    for _ in range(100):
        data = memoryview(broken(random_message(schema, random, strangers=random), random))
        with suppress(*PARSE_ERRORS):
            parse(data)


@each_codec
def test_no_broken_request_takes_memory(schema: Any, parse: Parse, random: Random) -> None:
    tracemalloc.start()
    try:
        for _ in range(10):
            data = memoryview(broken(random_message(schema, random, strangers=random), random))
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            with suppress(*PARSE_ERRORS):
                parse(data)
            cost = tracemalloc.get_traced_memory()[1] - before
            assert cost <= MEMORY_OF_A_MESSAGE + MEMORY_OF_A_BYTE * len(data), data.hex()
    finally:
        tracemalloc.stop()
