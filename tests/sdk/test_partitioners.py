"""Which partition a record goes to."""

from __future__ import annotations

from collections import Counter

import pytest
from tidelog.errors import InvalidConfig, InvalidRequest
from tidelog.partitioners import partitioner_factory


def test_keys_go_where_kafka_puts_them() -> None:
    """Partitions of 6 as the Java client's Utils.toPositive(murmur2(key)) % 6 gives."""
    choose = partitioner_factory("murmur2")("t").choose
    # Hashes from Kafka's own UtilsTest: murmur2("21") = -973932308, "foobar" = -790332482.
    assert choose(b"21", None, 6) == (-973932308 & 0x7FFFFFFF) % 6
    assert choose(b"foobar", None, 6) == (-790332482 & 0x7FFFFFFF) % 6
    assert choose(b"foobar", None, 6) == choose(b"foobar", b"x", 6)


def test_records_without_key_stick_to_a_partition_until_its_batch_is_full() -> None:
    partitioner = partitioner_factory("murmur2")("t")
    first = partitioner.choose(None, b"v", 4)
    assert {partitioner.choose(None, b"v", 4) for _ in range(20)} == {first}
    partitioner.on_batch_filled(4)
    assert partitioner.choose(None, b"v", 4) != first


def test_sticky_ignores_keys() -> None:
    partitioner = partitioner_factory("sticky")("t")
    assert len({partitioner.choose(str(n).encode(), None, 8) for n in range(50)}) == 1


def test_sticky_reaches_every_partition() -> None:
    partitioner = partitioner_factory("sticky")("t")
    seen = set()
    for _ in range(300):
        seen.add(partitioner.choose(None, None, 3))
        partitioner.on_batch_filled(3)
    assert seen == {0, 1, 2}


def test_round_robin_deals_out_evenly() -> None:
    partitioner = partitioner_factory("round-robin")("t")
    counts = Counter(partitioner.choose(b"same", None, 3) for _ in range(30))
    assert counts == {0: 10, 1: 10, 2: 10}


def test_custom_function_decides() -> None:
    partitioner = partitioner_factory(lambda topic, key, value, count: len(value or b"") % count)(
        "t"
    )
    assert partitioner.choose(None, b"abcd", 3) == 1


@pytest.mark.parametrize("wrong", [3, -1, "0", None, True])
def test_custom_function_that_chooses_no_partition_is_refused(wrong: object) -> None:
    partitioner = partitioner_factory(lambda *_: wrong)("orders")  # type: ignore[arg-type,return-value]
    with pytest.raises(InvalidRequest, match="'orders', which has partitions 0 to 2"):
        partitioner.choose(None, None, 3)


def test_unknown_name_is_refused_with_those_allowed() -> None:
    with pytest.raises(InvalidConfig, match="murmur2, sticky, round-robin, a callable"):
        partitioner_factory("random")  # type: ignore[arg-type]


def test_many_keys_do_not_pile_up() -> None:
    partitioner = partitioner_factory("murmur2")("t")
    for n in range(10_000):
        partitioner.choose(str(n).encode(), None, 3)
    assert len(partitioner._hashes) <= 4096  # type: ignore[attr-defined]
