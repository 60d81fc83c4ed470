"""What a client on a listener with SASL may send, and what it is answered."""

from __future__ import annotations

import asyncio
import struct
from dataclasses import replace
from typing import Any

import pytest
from tidelog_core.errors import ErrorCode
from tidelog_core.model import Principal
from tidelog_core.security.scram_client import ScramClient
from tidelog_core.security.scram_credentials import ScramMechanism

from tests.node.authentication.sasl_server import (
    API_VERSIONS,
    AUTHENTICATE,
    HANDSHAKE,
    PASSWORD,
    SCRAM,
    USER,
    sasl_server,
)

FAILED = ErrorCode.sasl_authentication_failed
ILLEGAL = ErrorCode.illegal_sasl_state
PLAIN_REFUSAL = "Authentication failed: Invalid username or password"


@pytest.mark.parametrize("mechanism", ScramMechanism)
@pytest.mark.parametrize("version", range(3))
async def test_a_client_logs_in_by_scram_and_is_the_user_from_then_on(
    mechanism: ScramMechanism, version: int
) -> None:
    async with sasl_server() as served:
        client = await served.client()
        answer = await client.log_in(mechanism=mechanism, version=version)
        assert (answer.error_code, answer.error_message) == (ErrorCode.none, "")
        assert await client.hot()
        (session,) = served.hot_sessions
        assert session.principal == Principal("User", USER)
        assert session.client_id == "test"
        # Nothing of the login is left: its connection's handler is the dispatch table itself.
        assert session.authentication is None
        assert served.logins.refusals == []


async def test_a_client_logs_in_by_plain() -> None:
    async with sasl_server() as served:
        for _ in range(2):  # the second time without a check of the password
            client = await served.client()
            answer = await client.log_in_plain()
            assert (answer.error_code, bytes(answer.auth_bytes)) == (ErrorCode.none, b"")
            assert await client.hot()
        assert {str(session.principal) for session in served.hot_sessions} == {f"User:{USER}"}


@pytest.mark.parametrize("handshake", ["SCRAM-SHA-256", "PLAIN"])
async def test_tokens_are_raw_after_version_0_of_the_handshake(handshake: str) -> None:
    async with sasl_server() as served:
        client = await served.client()
        answer = await client.call(HANDSHAKE, 0, mechanism=handshake)
        assert answer.error_code == ErrorCode.none
        if handshake == "PLAIN":
            client.send_frame(f"\0{USER}\0{PASSWORD}".encode())
            assert await client.receive() == b""
        else:
            scram = ScramClient(SCRAM, USER, PASSWORD, nonce="n")
            client.send_frame(scram.first_message())
            challenge = await client.receive()
            assert challenge is not None
            client.send_frame(scram.final_message(challenge))
            last = await client.receive()
            assert last is not None
            scram.check(last)
        assert await client.hot()


async def test_a_wrong_raw_token_closes_the_connection_without_an_answer() -> None:
    async with sasl_server() as served:
        client = await served.client()
        await client.call(HANDSHAKE, 0, mechanism="PLAIN")
        client.send_frame(b"\0a\0b")
        assert await client.is_closed()


@pytest.mark.parametrize("version", range(5))
async def test_api_versions_after_the_login_add_the_version_of_tidelog_alone(version: int) -> None:
    fields: dict[str, Any] = {"client_software_name": "x", "client_software_version": "1"}
    fields = fields if version >= 3 else {}
    async with sasl_server() as served:
        client, other = await served.client(), await served.client(is_open=True)
        before = await client.call(API_VERSIONS, version, **fields)
        await client.log_in()
        after = await client.call(API_VERSIONS, version, **fields)
        assert after == await other.call(API_VERSIONS, version, **fields)
        if version >= 3:
            added = after.supported_features[len(before.supported_features) :]
            assert [one.name.startswith("tidelog.version.") for one in added] == [True]
            after = replace(after, supported_features=before.supported_features)
        assert before == after
        ranges = {key.api_key: (key.min_version, key.max_version) for key in before.api_keys}
        assert (ranges[HANDSHAKE], ranges[AUTHENTICATE]) == ((0, 1), (0, 2))


async def test_api_versions_may_be_tried_again_until_it_has_been_answered_with_versions() -> None:
    async with sasl_server() as served:
        client = await served.client()
        client.send_frame(client.header(API_VERSIONS, 99, is_flexible=True))
        unsupported = await client.receive()
        assert unsupported is not None
        assert struct.unpack_from(">4xh", unsupported) == (ErrorCode.unsupported_version,)
        invalid = await client.call(
            API_VERSIONS, 3, client_software_name="not allowed!", client_software_version="1"
        )
        assert invalid.error_code == ErrorCode.invalid_request
        assert (await client.call(API_VERSIONS, 0)).error_code == ErrorCode.none
        assert await client.call(API_VERSIONS, 0) is None, "once only, as in Kafka"


@pytest.mark.parametrize("version", [0, 1])
async def test_another_mechanism_is_refused_with_the_list_of_those_enabled(version: int) -> None:
    async with sasl_server(mechanisms=("SCRAM-SHA-512", "SCRAM-SHA-256")) as served:
        for name in ("PLAIN", "GSSAPI", "scram-sha-256", ""):
            client = await served.client()
            answer = await client.call(HANDSHAKE, version, mechanism=name)
            assert answer.error_code == ErrorCode.unsupported_sasl_mechanism
            assert answer.mechanisms == ("SCRAM-SHA-512", "SCRAM-SHA-256")
            assert await client.is_closed()
        reason, hint = served.logins.refusals[0]
        assert reason == "the client asks for a mechanism that is not enabled"
        assert "SCRAM-SHA-512, SCRAM-SHA-256" in hint


async def test_a_wrong_password_and_an_unknown_user_are_refused_alike() -> None:
    async with sasl_server() as served:
        answers = []
        for user, password in ((USER, "wrong"), ("nobody", PASSWORD)):
            for mechanism in ScramMechanism:
                client = await served.client()
                answer = await client.log_in(password, user=user, mechanism=mechanism)
                assert answer.error_code == FAILED
                assert bytes(answer.auth_bytes) == b""
                assert await client.is_closed()
                answers.append(answer.error_message)
            client = await served.client()
            answer = await client.log_in_plain(password, user=user)
            assert answer.error_code == FAILED
            assert await client.is_closed()
            answers.append(answer.error_message)
        assert answers[:3] == answers[3:]
        assert answers[2] == PLAIN_REFUSAL
        # The log says more than the client gets to know.
        reasons = [reason for reason, _ in served.logins.refusals]
        assert reasons[0] == "authentication failed, SCRAM-SHA-256: wrong password"
        assert reasons[3] == "authentication failed, SCRAM-SHA-256: no such credential"
        assert not any(PASSWORD in reason or "nobody" in reason for reason in reasons)


async def test_a_refusal_is_sent_late_and_is_the_last_answer() -> None:
    async with sasl_server(failure_delay_seconds=0.2) as served:
        loop = asyncio.get_running_loop()
        client = await served.client()
        began = loop.time()
        assert (await client.log_in_plain("wrong")).error_code == FAILED
        assert await client.is_closed()
        assert loop.time() - began >= 0.2
        client = await served.client()
        began = loop.time()
        await client.call(HANDSHAKE, 1, mechanism="GSSAPI")
        assert loop.time() - began >= 0.2


async def test_a_refused_client_may_close_the_connection_itself() -> None:
    """kafka-python overlooks an answer that comes together with the node's end."""
    async with sasl_server() as served:
        client = await served.client()
        assert (await client.log_in_plain("wrong")).error_code == FAILED
        assert served.connection_count == 1
        client.send(bytes(300_000))  # discarded
        assert await client.is_closed(), "it need not"


@pytest.mark.parametrize("authorization_id", ["root", "alice2", "Alice"])
async def test_a_client_cannot_act_as_another_user(authorization_id: str) -> None:
    """CVE-2017-12610: brokers took the authorization id for the user."""
    message = "Client requested an authorization id that is different from username"
    async with sasl_server() as served:
        client = await served.client()
        answer = await client.log_in_plain(acting_as=authorization_id)
        assert answer.error_code == FAILED
        assert message in answer.error_message
        assert await client.is_closed()
        client = await served.client()
        await client.call(HANDSHAKE, 1, mechanism=str(SCRAM))
        token = f"n,a={authorization_id},n={USER},r=nonce".encode()
        answer = await client.call(AUTHENTICATE, 2, auth_bytes=token)
        assert answer.error_code == FAILED
        assert message in answer.error_message
        assert await client.is_closed()
        # Their own name they may give.
        assert (await (await served.client()).log_in_plain(acting_as=USER)).error_code == 0


async def test_a_delegation_token_is_refused_like_an_unknown_user() -> None:
    async with sasl_server() as served:
        client = await served.client()
        await client.call(HANDSHAKE, 1, mechanism=str(SCRAM))
        first = f"n,,n={USER},r=nonce,tokenauth=true".encode()
        challenge = await client.call(AUTHENTICATE, 2, auth_bytes=first)
        nonce = bytes(challenge.auth_bytes).split(b",")[0]
        proof = b"c=biws," + nonce + b",p=" + b"A" * 43 + b"="
        answer = await client.call(AUTHENTICATE, 2, auth_bytes=proof)
        assert answer.error_code == FAILED
        assert "token" not in answer.error_message
        assert await client.is_closed()
        assert "delegation token" in served.logins.refusals[0][0]


async def test_sasl_is_out_of_place_where_nobody_has_to_authenticate() -> None:
    """As in Kafka, on an open listener and after a login; the connection stays."""
    async with sasl_server() as served:
        known = await served.client()
        await known.log_in()
        for client in (known, await served.client(is_open=True)):
            for _ in range(2):
                handshake = await client.call(HANDSHAKE, 1, mechanism="PLAIN")
                assert (handshake.error_code, handshake.mechanisms) == (ILLEGAL, ())
                answer = await client.call(AUTHENTICATE, 2, auth_bytes=b"token")
                assert answer.error_code == ILLEGAL
                assert "after successful authentication" in answer.error_message
            assert await client.hot()


async def test_a_handshake_instead_of_a_token_is_the_end() -> None:
    async with sasl_server() as served:
        client = await served.client()
        await client.call(HANDSHAKE, 1, mechanism=str(SCRAM))
        answer = await client.call(HANDSHAKE, 1, mechanism=str(SCRAM))
        assert answer.error_code == ILLEGAL
        assert await client.is_closed()


async def test_requests_sent_together_with_the_last_token_are_served() -> None:
    async with sasl_server() as served:
        client = await served.client()
        await client.call(HANDSHAKE, 1, mechanism="PLAIN")
        token = f"\0{USER}\0{PASSWORD}".encode()
        client.send_request(AUTHENTICATE, 2, auth_bytes=token)
        for _ in range(3):
            client.send_frame(client.header(0, 2))
        for _ in range(4):
            assert await client.receive() is not None
        assert len(served.hot_sessions) == 3


async def test_a_changed_password_counts_from_the_next_login_on() -> None:
    """Kafka keeps the connections of users who are changed or removed; so does Tidelog."""
    async with sasl_server() as served:
        client = await served.client()
        await client.log_in_plain()
        served.users.users = {}
        assert await client.hot()
        assert (await (await served.client()).log_in_plain()).error_code == FAILED
        assert (await (await served.client()).log_in()).error_code == FAILED
