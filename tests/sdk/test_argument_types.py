"""Arguments of other types: each call refuses them at once, by an error of the SDK.

Every argument of every call gets values of many types. What a call takes is not looked at: the node
answers as it can, and many calls fail.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from tidelog import Admin, Consumer, Producer
from tidelog.errors import InvalidRequest, TidelogError
from tidelog.wire import requests
from tidelog.wire.requests import Api

from tests.sdk.scripted_node import TOPIC, ScriptedNode

WRONG = ["5", None, 1.5, -1, object(), [], b"x", True, float("nan"), {}, [1], {1: 2}]
RIGHT: dict[str, Any] = {
    "partition": 0,
    "partitions": [(TOPIC, 0)],
    "topic": TOPIC,
    "topics": [TOPIC],
    "timeout_ms": 1,
    "offset": 1,
    "max_records": 1,
}
# Calls that end a client, wait for what never comes, or are for the SDK itself.
LEFT_OUT = {"close", "start", "sync", "note_refused", "give_back", "next_run", "hand_out_run"}
LEFT_OUT |= {"complete", "abort_transaction"}


def calls(client: object) -> list[str]:
    """Return the names of the client's calls that have arguments."""
    return [
        name
        for name in dir(client)
        if not name.startswith("_")
        and name not in LEFT_OUT
        and callable(getattr(type(client), name))
        and inspect.signature(getattr(client, name)).parameters
    ]


def filled(method: Callable[..., Any], wrong: str, value: object) -> Any:
    """Call the method with this argument, and with right ones else, as far as they are known."""
    positional: list[object] = []
    named: dict[str, object] = {}
    for one in inspect.signature(method).parameters.values():
        given = value if one.name == wrong else RIGHT.get(one.name, one.default)
        given = "x" if given is inspect.Parameter.empty else given
        if one.kind is inspect.Parameter.KEYWORD_ONLY:
            named[one.name] = given
        elif one.kind is not inspect.Parameter.VAR_POSITIONAL or one.name == wrong:
            positional.append(given)
    return method(*positional, **named)


@pytest.mark.parametrize("kind", [Admin, Consumer, Producer])
async def test_a_value_of_another_type_is_never_a_type_error_deep_inside(kind: Any) -> None:
    quick = {Admin: {"timeout_ms": 5}, Producer: {"max_block_ms": 5}}.get(kind, {})
    async with ScriptedNode() as node, kind(node.address, **quick) as client:
        if isinstance(client, Consumer):
            client.assign([(TOPIC, 0)])
        if isinstance(client, Admin):
            for api in vars(requests).values():
                if isinstance(api, Api) and api is not requests.METADATA:
                    node.set(api, lambda _: None)  # It answers nothing.

        async def refused(name: str, argument: str, value: object) -> str | None:
            try:
                async with asyncio.timeout(0.5):
                    result = filled(getattr(client, name), argument, value)
                    if inspect.isawaitable(result):
                        await result
            except (TidelogError, TimeoutError):
                return None
            except Exception as error:
                return f"{name}({argument}={value!r}): {error!r}"
            return None

        found = [
            await refused(name, argument, value)
            for name in calls(client)
            for argument in inspect.signature(getattr(client, name)).parameters
            for value in WRONG
        ]
        assert len(found) > 10 * len(WRONG)
        assert [problem for problem in found if problem is not None] == []


async def test_the_error_names_the_argument_and_what_is_allowed() -> None:
    async with ScriptedNode() as node, Consumer(node.address) as consumer:
        consumer.assign([(TOPIC, 0)])
        for wrong in ("5", None, True, float("nan"), [1], 10**400, np.timedelta64(5, "s")):
            with pytest.raises(InvalidRequest, match=r"^timeout_ms must be a number, is "):
                await consumer.poll(timeout_ms=wrong)  # type: ignore[arg-type]
        for wrong in ("5", 0, -1, True, 1.0):
            with pytest.raises(InvalidRequest, match=r"^max_records must be an integer above zero"):
                await consumer.poll(max_records=wrong)  # type: ignore[arg-type]
            with pytest.raises(InvalidRequest, match=r"^max_bytes must be an integer above zero"):
                await consumer.poll_arrow(max_bytes=wrong)  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest, match=r"^offsets must be a dict of a partition: an off"):
            await consumer.commit([(TOPIC, 0)])  # type: ignore[arg-type]
        assert await consumer.poll(timeout_ms=-1) == []


async def test_a_secret_of_another_type_is_not_shown() -> None:
    async with ScriptedNode() as node, Admin(node.address) as admin:
        with pytest.raises(InvalidRequest, match=r"password must be a text, is of type bytes$"):
            await admin.set_password("alice", b"secret")  # type: ignore[arg-type]


async def test_integers_of_tables_are_offsets() -> None:
    """They are numpy's, or of another class with an index."""

    class Integer:
        def __index__(self) -> int:
            return 7

    async with ScriptedNode() as node, Consumer(node.address) as consumer:
        consumer.assign([(TOPIC, 0)])
        consumer.seek((TOPIC, 0), Integer())  # type: ignore[arg-type]
        assert await consumer.position((TOPIC, 0)) == 7
        for wrong in (Decimal(7), np.array([7, 8])):
            with pytest.raises(InvalidRequest, match="an offset must be an integer"):
                consumer.seek((TOPIC, 0), wrong)  # type: ignore[arg-type]


async def test_a_record_for_no_number_of_a_partition_is_refused() -> None:
    async with ScriptedNode() as node, Producer(node.address) as producer:
        for wrong in ("0", 0.0, False, (0,), -1):
            with pytest.raises(InvalidRequest, match="a partition must be a number from 0 on"):
                await producer.send(TOPIC, b"v", partition=wrong)  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest, match="a topic must be a text"):
            await producer.send([TOPIC], b"v")  # type: ignore[arg-type]
        assert (await producer.send_and_wait(TOPIC, b"v", partition=0)).partition == 0


def test_a_time_to_wait_for_an_outcome_is_a_number() -> None:
    async def address() -> None:
        async with ScriptedNode() as node:
            await asyncio.to_thread(use, node.address)

    def use(address: str) -> None:
        with Producer(address).sync() as producer:
            delivery = producer.send(TOPIC, b"v")
            with pytest.raises(InvalidRequest, match="timeout_s must be a number"):
                delivery.result("1")  # type: ignore[arg-type]
            assert delivery.result(30).partition == 0

    asyncio.run(address())
