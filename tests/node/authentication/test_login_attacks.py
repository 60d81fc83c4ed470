"""What strangers may try on a listener with SASL, and what it costs the node."""

from __future__ import annotations

import asyncio
import base64
import logging
import random
import struct
import tracemalloc

import pytest
from tidelog_core.errors import ErrorCode
from tidelog_core.security.scram_client import ScramClient
from tidelog_node.authentication.authentication import ROUNDS_MAX
from tidelog_node.authentication.login import REQUEST_BYTES_MAX
from tidelog_node.authentication.login_frames import COUNTED_BYTES_MAX, FRAME_BYTES_UNCOUNTED

from tests.node.authentication.sasl_server import (
    API_VERSIONS,
    AUTHENTICATE,
    HANDSHAKE,
    PASSWORD,
    SCRAM,
    USER,
    Client,
    SaslServer,
    sasl_server,
    users_with,
)
from tests.support.loop_turns import loop_turns
from tests.support.waiting import eventually_async

FAILED = ErrorCode.sasl_authentication_failed
SEED = 20_261_123
SOCKETS = 400


async def test_no_other_api_is_parsed_before_a_client_is_known() -> None:
    async with sasl_server() as served:
        for api_key in (*(key for key in range(-1, 95) if key not in (17, 18)), 18_000, -(2**15)):
            client = await served.client()
            client.send_frame(client.header(api_key, 0) + b"\xff" * 50)
            assert await client.is_closed(), api_key
        assert served.hot_sessions == []
        reason, hint = served.logins.refusals[1]
        assert reason == "a request of API 0 while the client has to authenticate"
        assert "security.protocol" in hint


async def test_no_other_api_is_parsed_between_the_tokens() -> None:
    async with sasl_server() as served:
        for api_key in (0, 3, API_VERSIONS):
            client = await served.client()
            await client.call(HANDSHAKE, 1, mechanism=str(SCRAM))
            client.send_frame(client.header(api_key, 0))
            assert await client.is_closed()
        assert served.hot_sessions == []


@pytest.mark.parametrize("size", [524_289, 2**31 - 1, -1, -(2**31), 0x16030102, 0x47455420])
async def test_a_frame_of_a_wrong_size_closes_the_connection_at_once(size: int) -> None:
    async with sasl_server() as served:
        client = await served.client()
        client.send(struct.pack(">i", size))
        assert await client.is_closed()
        reason, _ = served.logins.refusals[0]
        assert ("begins with TLS" in reason) == (size == 0x16030102)
        assert ("sasl.server.max.receive.size" in reason) == (size != 0x16030102)


async def test_a_frame_of_the_largest_size_is_taken() -> None:
    async with sasl_server(token_bytes_max=40_000) as served:
        client = await served.client()
        await client.call(HANDSHAKE, 1, mechanism=str(SCRAM))
        head = client.header(AUTHENTICATE, 1)
        token = b"n" * (40_000 - len(head) - 4)
        client.send_frame(head + struct.pack(">i", len(token)) + token)
        assert (await client.response(AUTHENTICATE, 1)).error_code == FAILED
        assert await client.is_closed()


@pytest.mark.parametrize("size", range(8))
async def test_a_frame_too_short_for_a_request_closes_the_connection(size: int) -> None:
    async with sasl_server() as served:
        client = await served.client()
        client.send_frame(b"\0\x12" + bytes(size))
        if size == 6:  # a whole header, but for its client id
            assert len(b"\0\x12" + bytes(size)) == 8
        assert await client.is_closed()


async def test_what_a_session_keeps_of_a_stranger_is_small() -> None:
    async with sasl_server() as served:
        client = await served.client()
        client.send_frame(client.header(API_VERSIONS, 0) + bytes(REQUEST_BYTES_MAX))
        assert await client.is_closed()
        client = await served.client()
        client.send_request(HANDSHAKE, 1, mechanism="x" * REQUEST_BYTES_MAX)
        assert await client.is_closed()


async def test_the_requests_of_a_login_are_few() -> None:
    async with sasl_server() as served:
        client = await served.client()
        for _ in range(1000):
            client.send_frame(client.header(API_VERSIONS, 99, is_flexible=True))
        answers = 0
        while await client.receive() is not None:
            answers += 1
        assert answers <= ROUNDS_MAX
        assert "requests without an end" in served.logins.refusals[0][0]


async def half_frames(served: SaslServer, size: int, sent: int) -> list[Client]:
    clients = [await served.client() for _ in range(SOCKETS)]
    for client in clients:
        client.send(struct.pack(">i", size) + bytes(sent))
    await eventually_async(
        lambda: all(client.writer.transport.get_write_buffer_size() == 0 for client in clients)
    )
    await asyncio.sleep(0.1)
    return clients


async def test_the_size_of_a_frame_costs_no_memory() -> None:
    async with sasl_server() as served:
        clients = [await served.client() for _ in range(SOCKETS)]
        await asyncio.sleep(0.1)
        tracemalloc.start()
        for client in clients:
            client.send(struct.pack(">i", 524_288) + bytes(8))
        await asyncio.sleep(0.1)
        taken_bytes, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert taken_bytes < SOCKETS * 10_000
        assert served.connection_count == SOCKETS


async def test_half_frames_of_many_sockets_take_bounded_memory_and_others_log_in() -> None:
    """CVE-2022-34917."""
    async with sasl_server() as served:
        tracemalloc.start()
        await half_frames(served, 524_288, 200_000)
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert served.service.memory.counted_bytes <= COUNTED_BYTES_MAX
        assert served.connection_count <= COUNTED_BYTES_MAX // 200_000 + 1
        # The test's own unsent bytes are in the peak, too.
        assert peak_bytes < SOCKETS * 200_000 + 3 * COUNTED_BYTES_MAX
        assert (await (await served.client()).log_in()).error_code == ErrorCode.none
        for client in served.clients:
            client.close()
        await eventually_async(lambda: served.service.memory.counted_bytes == 0)


async def test_small_tokens_in_pieces_are_taken_while_others_hold_the_memory() -> None:
    async with sasl_server() as served:
        served.service.memory.counted_bytes = COUNTED_BYTES_MAX
        client = await served.client()
        await client.call(HANDSHAKE, 1, mechanism="PLAIN")
        token = f"\0{USER}\0{PASSWORD}".encode()
        head = client.header(AUTHENTICATE, 0)
        data = head + struct.pack(">i", len(token)) + token
        data = struct.pack(">i", len(data)) + data
        assert len(data) < FRAME_BYTES_UNCOUNTED
        for index in range(len(data)):
            client.send(data[index : index + 1])
            await asyncio.sleep(0)
        assert (await client.response(AUTHENTICATE, 0)).error_code == ErrorCode.none


async def test_a_login_must_end_in_time() -> None:
    """Silent clients, and one that sends a byte now and then."""
    async with sasl_server(seconds_max=0.3) as served:
        silent, slow = await served.client(), await served.client()
        slow.send(struct.pack(">i", 100))
        for _ in range(3):
            slow.send(b"\0")
            await asyncio.sleep(0.05)
        assert served.connection_count == 2
        assert await silent.is_closed()
        assert await slow.is_closed()
        await eventually_async(lambda: served.connection_count == 0)
        assert "no login within" in served.logins.refusals[0][0]


@pytest.mark.parametrize("attack", ["replayed", "truncated", "foreign", "own", "empty"])
async def test_the_nonce_of_the_last_message_must_be_that_of_the_exchange(attack: str) -> None:
    """CVE-2024-56128: brokers did not compare it, so a recorded login could be sent again."""
    async with sasl_server() as served:
        recorded = ScramClient(SCRAM, USER, PASSWORD, nonce="mine")
        earlier = await served.client()
        await earlier.call(HANDSHAKE, 1, mechanism=str(SCRAM))
        first = await earlier.call(AUTHENTICATE, 2, auth_bytes=recorded.first_message())
        old_final = recorded.final_message(bytes(first.auth_bytes))
        assert (await earlier.call(AUTHENTICATE, 2, auth_bytes=old_final)).error_code == 0
        client = await served.client()
        await client.call(HANDSHAKE, 1, mechanism=str(SCRAM))
        scram = ScramClient(SCRAM, USER, PASSWORD, nonce="mine")
        second = await client.call(AUTHENTICATE, 2, auth_bytes=scram.first_message())
        challenge = bytes(second.auth_bytes)
        nonce, rest = challenge.removeprefix(b"r=").split(b",", 1)
        assert nonce.startswith(b"mine")
        wrong = {
            "truncated": nonce[:-1],
            "foreign": b"mine" + bytes(reversed(nonce[4:])),
            "own": b"mine" + b"x",
            "empty": b"x",
        }
        final = old_final
        if attack != "replayed":
            final = scram.final_message(challenge)
            final = final.replace(b"r=" + nonce, b"r=" + wrong[attack])
            assert rest
        answer = await client.call(AUTHENTICATE, 2, auth_bytes=final)
        assert answer.error_code == FAILED
        assert await client.is_closed()


async def test_random_bytes_end_in_a_refusal_and_nothing_else(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Bytes that are nearly right, at every step of a login."""
    rng = random.Random(SEED)
    async with sasl_server() as served:
        for _ in range(300):
            client = await served.client()
            begins = rng.randrange(3)
            if begins:
                await client.call(
                    HANDSHAKE, begins - 1, mechanism=rng.choice(["PLAIN", str(SCRAM)])
                )
            key = rng.choice([17, 18, 36])
            data = bytearray(
                client.header(key, rng.randrange(5)) + rng.randbytes(rng.randrange(80))
            )
            for _ in range(rng.randrange(4)):
                data[rng.randrange(len(data))] = rng.randrange(256)
            client.send_frame(bytes(data))
            client.writer.write_eof()
            for _ in range(3):
                if await client.receive() is None:
                    break
            else:
                raise AssertionError(f"an end was expected, seed {SEED}: {data.hex()}")
        assert served.hot_sessions == []
        assert (await (await served.client()).log_in()).error_code == ErrorCode.none
    assert [record.message for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_no_secret_is_in_the_log_at_any_level(caplog: pytest.LogCaptureFixture) -> None:
    """CVE-2026-33558: brokers wrote passwords into their log at DEBUG."""
    caplog.set_level(logging.DEBUG)
    sent: list[bytes] = []
    canary = "canary-pässword"
    async with sasl_server(users_with(canary)) as served:
        for password in (canary, canary + "-wrong"):
            for user in (USER, "canary-user"):
                await (await served.client()).log_in_plain(password, user=user)
                await (await served.client()).log_in(password, user=user)
        client = await served.client()
        await client.call(HANDSHAKE, 0, mechanism="PLAIN")
        client.send_frame(f"\0{USER}\0{canary}-raw".encode())
        await client.receive()
        for token in (canary.encode(), b"n,,n=canary,r=canary-nonce"):
            client = await served.client()
            await client.call(HANDSHAKE, 1, mechanism=str(SCRAM))
            await client.call(AUTHENTICATE, 2, auth_bytes=token)
            await client.call(AUTHENTICATE, 2, auth_bytes=token)
        for data in (
            canary.encode(),
            b"\0\x24\0\0" + canary.encode(),
            b"\0\x11\0\1" + b"\xff" * 40,
        ):
            client = await served.client()
            client.send_frame(data)
            await client.receive()
        sent = [base64.b64encode(canary.encode()), canary.encode().hex().encode()]
    text = "\n".join(
        f"{record.getMessage()} {record.__dict__} {record.exc_text}" for record in caplog.records
    )
    text += "\n".join(f"{reason} {hint}" for reason, hint in served.logins.refusals)
    assert len(served.logins.refusals) > 5
    assert "canary" not in text
    for secret in sent:
        assert secret.decode() not in text


async def test_no_login_holds_the_loop() -> None:
    async with sasl_server() as served:
        await (await served.client()).log_in()  # loads the schemas
        with loop_turns() as turns:
            clients = [await served.client() for _ in range(40)]
            logins = [
                client.log_in_plain(f"wrong-{index}") if index % 2 else client.log_in()
                for index, client in enumerate(clients)
            ]
            answers = await asyncio.gather(*logins)
        assert {answer.error_code for answer in answers} == {FAILED, ErrorCode.none}
        assert turns.longest_seconds < 0.02, turns.longest
