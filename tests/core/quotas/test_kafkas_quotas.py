"""Throttle times for random quotas, clients and amounts: Kafka's own quota managers decide too."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from tidelog_core.quotas.client_quotas import ClientQuotas
from tidelog_core.quotas.quota_entity import QuotaEntity
from tidelog_core.quotas.quota_keys import QuotaKey
from tidelog_core.quotas.token_bucket import TokenBucket
from tidelog_core.quotas.windowed_rate import WindowedRate

from tests.support.kafka_decisions import kafka_class_path, require_same_decisions

SEED = random.SystemRandom().randrange(2**32)
SETS, MANY_SETS, AMOUNTS = 40, 5_000, 60
USERS, CLIENTS = ("ann", "bob"), ("a", "b", "")
PRODUCE, MUTATION = QuotaKey.PRODUCER_BYTE_RATE, QuotaKey.CONTROLLER_MUTATION_RATE
ENTITIES = [
    QuotaEntity(user, client_id)
    for user in (None, "", "ann", "bob")
    for client_id in (None, "", "a")
    if (user, client_id) != (None, None)
]


class Meters:
    """The rates and buckets of all who share a limit."""

    def __init__(self, window_count: int, size_ms: int) -> None:
        self._shape = {"window_count": window_count, "size_ms": size_ms}
        self.rates: dict[tuple[str, str], WindowedRate] = {}
        self.buckets: dict[tuple[str, str], TokenBucket] = {}

    def add(self, quotas: ClientQuotas, user: str, client_id: str, of: tuple[float, int]) -> int:
        limit = quotas.limit(PRODUCE, user, client_id)
        if limit is None:
            return 0
        rate = self.rates.setdefault(limit.shared_by, WindowedRate(**self._shape))
        rate.add(*of)
        return rate.throttle_ms(limit.rate, of[1])

    def take(self, quotas: ClientQuotas, user: str, client_id: str, of: tuple[float, int]) -> int:
        limit = quotas.limit(MUTATION, user, client_id)
        if limit is None:
            return 0
        bucket = self.buckets.setdefault(limit.shared_by, TokenBucket(**self._shape))
        if bucket.is_overdrawn(limit.rate, of[1]):
            return bucket.throttle_ms(limit.rate, of[1])
        bucket.take(of[0], limit.rate, of[1])
        return 0


def questions(chance: random.Random, set_count: int) -> Iterator[tuple[str, str]]:
    """Yield lines for Kafka, each with our answer; "": none is given."""
    for _ in range(set_count):
        window_count, seconds = chance.choice((11, 11, 3, 1)), chance.choice((1, 1, 2))
        meters = Meters(window_count, seconds * 1000)
        yield f"new\t{window_count}\t{seconds}", ""
        rates = {
            entity: chance.choice((1, 2.5, 50, 1000))
            for entity in chance.sample(ENTITIES, chance.randint(0, 5))
        }
        for entity, rate in rates.items():
            yield line("set", *named(entity), rate), ""
        now_ms = 1_000_000_000
        for _ in range(AMOUNTS):
            if rates and chance.random() < 0.05:
                entity = chance.choice(list(rates))
                rates[entity] = chance.choice((2, 30, 800))
                yield line("set", *named(entity), rates[entity]), ""
            quotas = ClientQuotas.of(
                {
                    entity: {PRODUCE.value: rate, MUTATION.value: rate}
                    for entity, rate in rates.items()
                }
            )
            now_ms += chance.choice((0, 1, 10, 300, 999, 1000, 1001, 5000, 12_000))
            user, client_id = chance.choice(USERS), chance.choice(CLIENTS)
            amount = float(chance.choice((1, 7, 100, 12_345)))
            for kind, count in (("add", meters.add), ("take", meters.take)):
                answer = count(quotas, user, client_id, (amount, now_ms))
                yield line(kind, user, client_id, amount, now_ms), str(answer)


def named(entity: QuotaEntity) -> tuple[str, str]:
    user, client_id = ("-" if name is None else name or "*" for name in entity[:2])
    return user, client_id


def line(*fields: object) -> str:
    return "\t".join(map(str, fields))


@pytest.fixture(scope="module")
def class_path() -> str:
    return kafka_class_path()


@pytest.mark.parametrize("set_count", [SETS, pytest.param(MANY_SETS, marks=pytest.mark.slow)])
def test_throttle_times_are_those_of_kafka(class_path: str, tmp_path: Path, set_count: int) -> None:
    print(f"seed {SEED}")
    asked = list(questions(random.Random(SEED), set_count))
    source = Path(__file__).with_name("JavaQuotas.java")
    theirs = require_same_decisions(source, asked, class_path=class_path, folder=tmp_path)
    assert len(set(theirs)) > set_count  # many different times, not all of them 0
