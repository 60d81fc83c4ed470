"""The clients that people have log in by SCRAM and PLAIN, with awkward names and passwords."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import warnings
from collections.abc import Callable

import pytest
from aiokafka.client import AIOKafkaClient
from confluent_kafka.admin import AdminClient
from tidelog_core.security.plain import PLAIN_MECHANISM, check_password, parse_plain
from tidelog_core.security.scram import ScramServer
from tidelog_core.security.scram_credentials import ScramMechanism

from tests.core.security.sasl_listener import Exchange, listening
from tests.support.scram_users import Users, stored

SECONDS_MAX = 30.0
USER, PASSWORD = "a=b,c d=2C", "pässword,=\t1"
UNESCAPED_USER = "alice"  # kafka-python does not escape names
MECHANISMS = [*ScramMechanism, PLAIN_MECHANISM]


def librdkafka(address: str, mechanism: str, password: str, is_over: threading.Event) -> None:
    admin = AdminClient(
        {
            "bootstrap.servers": address,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": mechanism,
            "sasl.username": USER,
            "sasl.password": password,
            "log_level": 0,
        }
    )
    while not is_over.is_set():
        admin.poll(0.05)


def aiokafka(address: str, mechanism: str, password: str, _: threading.Event) -> None:
    async def run() -> None:
        client = AIOKafkaClient(
            bootstrap_servers=address,
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism=mechanism,
            sasl_plain_username=USER,
            sasl_plain_password=password,
            request_timeout_ms=2000,
        )
        with contextlib.suppress(Exception):
            await client.bootstrap()
        await client.close()

    asyncio.run(run())


def kafka_python(address: str, mechanism: str, password: str, _: threading.Event) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Its import warns of deprecations.
        from kafka import KafkaAdminClient
    with contextlib.suppress(Exception):
        KafkaAdminClient(
            bootstrap_servers=address,
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism=mechanism,
            sasl_plain_username=UNESCAPED_USER,
            sasl_plain_password=password,
            request_timeout_ms=2000,
            bootstrap_timeout_ms=1500,
        ).close()


def new_exchange(mechanism: str) -> Exchange:
    """Return one login of a user with ``PASSWORD``."""
    users = Users(
        {
            (user, one): stored(PASSWORD, one)
            for user in (USER, UNESCAPED_USER)
            for one in ScramMechanism
        }
    )
    if mechanism == PLAIN_MECHANISM:

        def check(message: bytes) -> tuple[bytes, str | None]:
            login = parse_plain(message)
            check_password(login, users)
            return b"", login.user

        return check
    server = ScramServer(ScramMechanism(mechanism), users, nonce="nonce-of-the-server")

    def answer(message: bytes) -> tuple[bytes, str | None]:
        return server.answer(message), server.user

    return answer


@pytest.mark.parametrize(
    ("client", "mechanism"),
    [
        *((aiokafka, mechanism) for mechanism in MECHANISMS),
        *((librdkafka, mechanism) for mechanism in MECHANISMS),
        (kafka_python, ScramMechanism.SCRAM_SHA_256),
        *(
            pytest.param(kafka_python, mechanism, marks=pytest.mark.slow)
            for mechanism in MECHANISMS[1:]
        ),
    ],
)
def test_clients_log_in_with_the_right_password_only(
    client: Callable[[str, str, str, threading.Event], None], mechanism: str
) -> None:
    """Each client's own messages, with names that have to be escaped."""
    with listening(lambda: new_exchange(mechanism), mechanism) as listener:
        user = UNESCAPED_USER if client is kafka_python else USER
        for password, outcome in ((PASSWORD, user), (PASSWORD + "x", None)):
            is_over = threading.Event()
            arguments = (listener.address, str(mechanism), password, is_over)
            thread = threading.Thread(target=client, args=arguments)
            thread.start()
            try:
                assert listener.outcomes.get(timeout=SECONDS_MAX) == outcome
            finally:
                is_over.set()
                thread.join()
            while not listener.outcomes.empty():
                assert listener.outcomes.get() == outcome, "of another attempt"
