"""Keys of the objects of chains."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidelog_core.diskless.wal.keys import (
    Heir,
    WalKey,
    chain_of_key,
    chain_prefix,
    checkpoint_key,
    heir_key,
    parse_heir_key,
    parse_wal_key,
    wal_key,
)
from tidelog_core.metadata.epoch_chains import ChainName
from tidelog_core.objects.key_rules import check_key
from tidelog_core.tier.keys import parse_segment_key

CHAIN = ChainName(7, UUID("0a3b7b4e-6f8e-4a53-93f1-0d8a8d2f7c22"))
KEY = "c/wal/0000000007/0a3b7b4e-6f8e-4a53-93f1-0d8a8d2f7c22/00000000000000000042.wal"


def test_the_key_is_the_documented_one() -> None:
    assert wal_key("c", CHAIN, 42) == KEY
    assert checkpoint_key("c", CHAIN, 42) == KEY[:-4] + ".ckpt"


@given(st.integers(0, 2**31 - 1), st.uuids(), st.integers(0, 2**63 - 1))
def test_a_key_is_allowed_and_read_back(broker_id: int, chain_id: UUID, sequence: int) -> None:
    chain = ChainName(broker_id, chain_id)
    for key, is_checkpoint in (
        (wal_key("cluster-1", chain, sequence), False),
        (checkpoint_key("cluster-1", chain, sequence), True),
    ):
        check_key(key)
        assert key.startswith(chain_prefix("cluster-1", chain))
        assert parse_wal_key(key) == WalKey("cluster-1", chain, sequence, is_checkpoint)
        assert parse_segment_key(key) is None


@given(st.integers(0, 2**31 - 1), st.uuids(), st.integers(0, 2**63 - 1))
def test_a_note_is_read_back_and_is_no_object(
    broker_id: int, chain_id: UUID, sequence: int
) -> None:
    heir = Heir(ChainName(broker_id, chain_id), sequence)
    key = heir_key("cluster-1", CHAIN, heir)
    check_key(key)
    assert parse_heir_key(key) == heir
    assert parse_wal_key(key) is None
    assert chain_of_key(key) == chain_of_key(wal_key("cluster-1", CHAIN, 3)) == CHAIN
    # It is listed behind the objects, and before another chain's.
    assert wal_key("cluster-1", CHAIN, 2**63 - 1) < key < chain_prefix("cluster-1", CHAIN) + "~"
    assert parse_heir_key(key + "0") is None


@given(st.lists(st.integers(0, 2**63 - 1), max_size=8))
def test_a_store_lists_a_chain_in_order(sequences: list[int]) -> None:
    keys = sorted(wal_key("c", CHAIN, sequence) for sequence in sequences)
    assert [parse_wal_key(key).sequence for key in keys] == sorted(sequences)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "key",
    [
        "",
        "c/wal/",
        KEY + "/x",
        KEY + "\n",
        "x/" + KEY,
        KEY.upper(),
        KEY.replace("wal/", "wal//", 1),
        KEY.replace("0000000007", "7"),
        KEY.replace("0000000007", "2147483648"),
        KEY.replace("0000000007", "-000000007"),
        KEY.replace("0000000007", "000000000\u0667"),
        KEY.replace("00000000000000000042", "42"),
        KEY.replace("00000000000000000042", "9223372036854775808"),
        KEY.replace("00000000000000000042", "99999999999999999999"),
        KEY.replace("00000000000000000042", "+0000000000000000042"),
        KEY.replace("c/", "../", 1),
        KEY.replace("c/", "a/b/", 1),
        KEY.replace("0a3b7b4e", "0A3B7B4E"),
        KEY.replace("0a3b7b4e-", "0a3b7b4e"),
        KEY.replace(".wal", ".wal.ckpt"),
        KEY.replace(".wal", ".log"),
        "c/t-0a3b7b4e-6f8e-4a53-93f1-0d8a8d2f7c22/0/00000000000000000042.wal",
    ],
)
def test_other_keys_are_not_those_of_chains(key: str) -> None:
    assert parse_wal_key(key) is None


@given(st.text(max_size=120))
def test_no_text_makes_the_parser_fail(text: str) -> None:
    parse_wal_key(text)
    parse_wal_key(f"c/wal/{text}")


def test_numbers_out_of_bounds_are_refused() -> None:
    for broker_id, sequence in ((-1, 0), (2**31, 0), (0, -1), (0, 2**63)):
        with pytest.raises(ValueError, match="is outside"):
            wal_key("c", ChainName(broker_id, CHAIN.chain_id), sequence)
