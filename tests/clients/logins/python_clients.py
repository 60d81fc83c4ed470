"""Clients of Python: one record there and back. A refusal is the client's own error."""

from __future__ import annotations

import asyncio
import time
import warnings
from typing import Any

import aiokafka
import confluent_kafka
import tidelog
from aiokafka.abc import AbstractTokenProvider
from tidelog import Sasl, SaslToken
from tidelog_core.errors import TidelogError

from tests.clients.logins.login import SECONDS_MAX, TOPIC, Login, Refused
from tests.support.certificates import client_context

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Its import warns of deprecations.
    import kafka
    from kafka.net.sasl.oauth import AbstractTokenProvider as KafkaPythonTokens


def librdkafka(login: Login, value: str) -> str:
    """It reports errors of connections to a callback; they have a code."""
    problems: list[confluent_kafka.KafkaError] = []
    settings = librdkafka_settings(login) | {"error_cb": problems.append}
    if login.token:
        settings["oauth_cb"] = lambda _: (login.token, time.time() + 600)
    offsets: list[int] = []
    producer = confluent_kafka.Producer(settings)
    producer.produce(
        TOPIC, value, partition=0, on_delivery=lambda _, record: offsets.append(record.offset())
    )
    deadline = time.monotonic() + SECONDS_MAX
    while not offsets and time.monotonic() < deadline:
        producer.poll(0.05)
        for problem in problems:
            if problem.code() != confluent_kafka.KafkaError._ALL_BROKERS_DOWN:
                producer.purge()
                raise Refused(problem.name(), problem.str())
    consumer = confluent_kafka.Consumer({**settings, "group.id": "librdkafka"})
    consumer.assign([confluent_kafka.TopicPartition(TOPIC, 0, offsets[0])])
    message = consumer.poll(SECONDS_MAX)
    assert message is not None
    assert message.error() is None
    consumer.close()
    return message.value().decode()


def librdkafka_settings(login: Login) -> dict[str, Any]:
    """Return its properties, without the token."""
    settings = {
        "bootstrap.servers": login.address,
        "security.protocol": login.security_protocol,
        "ssl.ca.location": str(login.trusted),
        "log_level": 0,
    }
    if login.pem is not None:
        settings |= {
            "ssl.certificate.location": str(login.pem),
            "ssl.key.location": str(login.pem),
        }
    if login.security_protocol != "SSL":
        settings["sasl.mechanism"] = login.mechanism
    if login.user:
        settings |= {"sasl.username": login.user, "sasl.password": login.password}
    return settings


class AiokafkaTokens(AbstractTokenProvider):
    """Gives aiokafka the token."""

    def __init__(self, token: str) -> None:
        self._token = token

    async def token(self) -> str:
        return self._token


def aiokafka_client(login: Login, value: str) -> str:
    async def run() -> str:
        settings = common_settings(login)
        if login.token:
            settings["sasl_oauth_token_provider"] = AiokafkaTokens(login.token)
        producer = aiokafka.AIOKafkaProducer(**settings)
        try:
            await producer.start()
            sent = await producer.send_and_wait(TOPIC, value.encode(), partition=0)
        except aiokafka.errors.KafkaError as error:
            raise Refused(type(error).__name__, str(error)) from error
        finally:
            await producer.stop()
        async with aiokafka.AIOKafkaConsumer(**settings, group_id=None) as consumer:
            partition = aiokafka.TopicPartition(TOPIC, 0)
            consumer.assign([partition])
            consumer.seek(partition, sent.offset)
            return str((await consumer.getone()).value.decode())

    return asyncio.run(asyncio.wait_for(run(), SECONDS_MAX))


class KafkaPythonProvider(KafkaPythonTokens):  # type: ignore[misc]
    """Gives kafka-python the token."""

    def __init__(self, token: str) -> None:
        self._token = token

    def token(self) -> str:
        return self._token


def kafka_python(login: Login, value: str) -> str:
    settings = common_settings(login)
    if login.token:
        settings["sasl_oauth_token_provider"] = KafkaPythonProvider(login.token)
    try:
        # A producer that cannot connect leaves its sockets open.
        kafka.KafkaAdminClient(**settings, bootstrap_timeout_ms=1000).close()
    except kafka.errors.KafkaError as error:
        raise Refused(type(error).__name__, str(error)) from error
    producer = kafka.KafkaProducer(**settings)
    sent = producer.send(TOPIC, value.encode(), partition=0).get(SECONDS_MAX)
    producer.close()
    consumer = kafka.KafkaConsumer(**settings, group_id=None)
    partition = kafka.TopicPartition(TOPIC, 0)
    consumer.assign([partition])
    consumer.seek(partition, sent.offset)
    read = next(consumer).value.decode()
    consumer.close()
    return str(read)


def common_settings(login: Login) -> dict[str, Any]:
    """Return the arguments that aiokafka and kafka-python both have."""
    settings: dict[str, Any] = {
        "bootstrap_servers": login.address,
        "security_protocol": login.security_protocol,
        "ssl_context": client_context(login.trusted, login.pem),
    }
    if login.security_protocol != "SSL":
        settings["sasl_mechanism"] = login.mechanism
    if login.user:
        settings |= {"sasl_plain_username": login.user, "sasl_plain_password": login.password}
    return settings


def sdk(login: Login, value: str) -> str:
    """Tidelog's own client."""
    settings: dict[str, Any] = {"ssl": client_context(login.trusted, login.pem)}
    if login.token:
        settings["sasl"] = SaslToken(lambda: login.token)
    elif login.user:
        settings["sasl"] = Sasl(
            login.mechanism,
            login.user,
            login.password,
            is_delegation_token=login.is_delegation_token,
        )

    async def run() -> str:
        try:
            async with tidelog.Producer(login.address, **settings) as producer:
                sent = await (await producer.send(TOPIC, value.encode(), partition=0))
        except TidelogError as error:
            raise Refused(type(error).__name__, str(error)) from error
        async with tidelog.Consumer(login.address, **settings) as consumer:
            consumer.assign([(TOPIC, 0)])
            consumer.seek((TOPIC, 0), sent.offset)
            records = await consumer.poll(timeout_ms=int(SECONDS_MAX * 1000))
            assert records[0].value is not None
            return bytes(records[0].value).decode()

    return asyncio.run(asyncio.wait_for(run(), SECONDS_MAX))
