"""SQLite counts the units that DynamoDB would charge, as ``bench.day`` computes them."""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path

import pytest
from tidelog_core.errors import VersionConflict
from tidelog_core.metadata.store import (
    ABSENT,
    ANY_VERSION,
    Check,
    ClusterVersion,
    ItemKey,
    KeyRange,
    MetadataStore,
    Write,
)
from tidelog_core.metadata.stores.commit import encode_body
from tidelog_core.metadata.stores.dynamodb_units import stored_size_bytes, written_size_bytes
from tidelog_core.metadata.stores.sqlite import SqliteMetadataStore

from bench.day.meter import MeteredStore

KEYS = [ItemKey(collection, f"{n:010d}") for collection in ("broker", "t:é") for n in range(4)]


async def do(store: MetadataStore, seed: int) -> None:
    """Do the same with every store: reads, writes of all sizes, conflicts, the changelog."""
    rng = random.Random(seed)
    version = ClusterVersion(0)
    for _ in range(50):
        key = rng.choice(KEYS)
        match rng.randrange(7):
            case 0:
                await store.get(key)
            case 1:
                await store.get_many(rng.sample(KEYS, 3))
            case 2:
                limit = rng.choice((None, 2))
                await store.list(key.collection, keys=KeyRange(limit=limit))
            case 3:
                await store.increment(ItemKey("counter", "n"), 1)
            case 4:
                version = (await store.changes_since(version)).version
            case _:
                writes = [
                    Write(
                        one, {"text": "x" * rng.randrange(6_000)}, ANY_VERSION, rng.random() < 0.3
                    )
                    for one in rng.sample(KEYS, rng.randrange(1, 3))
                ]
                checks = [Check(ItemKey("counter", "n"), ANY_VERSION)] * rng.randrange(2)
                await store.commit(writes, checks=checks)


@pytest.mark.parametrize("seed", range(3))
async def test_units_are_those_of_the_meter(tmp_path: Path, seed: int) -> None:
    plain = SqliteMetadataStore(tmp_path / "plain.db")
    under = SqliteMetadataStore(tmp_path / "metered.db")
    metered = MeteredStore(under)
    await do(plain, seed)
    await do(metered, seed)
    usage = plain.usage
    assert usage.costing_write_units == pytest.approx(
        sum(metered.usage.write_units.values()), rel=0.02
    )
    assert usage.costing_read_units == pytest.approx(
        sum(metered.usage.read_units.values()), rel=0.02
    )
    assert usage.read_units == usage.write_units == 0  # Nobody has charged anything.
    await plain.close()
    await under.close()


async def test_a_write_that_conflicts_is_charged_too(tmp_path: Path) -> None:
    store = SqliteMetadataStore(tmp_path / "metadata.db")
    await store.commit([Write(KEYS[0], {"a": 1}, ABSENT, is_logged=False)])
    before = store.usage.modelled_write_units
    with suppress(VersionConflict):
        await store.commit([Write(KEYS[0], {"a": 2}, ABSENT, is_logged=False)])
    assert (before, store.usage.modelled_write_units) == (1, 2)
    await store.close()


@pytest.mark.parametrize("version", [0, 7, 99, 100, 12_345])
def test_the_size_of_an_item_needs_no_encoding(version: int) -> None:
    body = {"text": "é" * 100, "list": [1, 2, 3]}
    write = Write(ItemKey("collection", "kéy"), body, version)
    size_bytes = len(encode_body(write.id, body).encode())
    assert stored_size_bytes(write.id, version + 1, size_bytes) == written_size_bytes(write)
