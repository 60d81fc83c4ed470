"""DynamoDbMetadataStore: the contract on two real servers, and what the network can do."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from functools import partial

import boto3
import pytest
from tidelog_core.clock import steady_clock_ms, wall_clock_ms
from tidelog_core.errors import OutcomeUnknown, StoreUnavailable, VersionConflict
from tidelog_core.metadata.store import (
    ABSENT,
    ANY_VERSION,
    Changes,
    Check,
    ClockedStore,
    ClusterVersion,
    Item,
    ItemKey,
    MetadataStore,
    Write,
)
from tidelog_core.metadata.stores.dynamodb import DynamoDbMetadataStore
from tidelog_core.metadata.stores.dynamodb_items import changelog_key, key_of
from tidelog_core.metadata.stores.usage import usage_of

from tests.aws.lossy_proxy import LossyProxy
from tests.contracts.metadata_store import (
    CHANGELOG_LENGTH,
    START,
    A,
    B,
    MetadataStoreContract,
    Open,
    Spoil,
    commit_until_known,
    create,
    numbered,
)

ANSWER_TIMEOUT_S = 30.0  # DynamoDB Local may be slow; what is lost closes its connection


@asynccontextmanager
async def opened(
    table: str, endpoint: str, *, read_timeout: float = ANSWER_TIMEOUT_S
) -> AsyncIterator[DynamoDbMetadataStore]:
    store = DynamoDbMetadataStore(
        table,
        region="us-east-1",
        endpoint=endpoint,
        changelog_length=CHANGELOG_LENGTH,
        read_timeout=read_timeout,
    )
    try:
        yield store
    finally:
        await store.close()


async def new_table(endpoint: str) -> str:
    table = f"tidelog-{uuid.uuid4().hex}"
    async with opened(table, endpoint) as store:
        await store.create_table()
        await store.create_table()  # Doing it twice is harmless.
    return table


def spoil_item(endpoint: str, table: str, key: ItemKey, with_version: bool) -> None:
    client = boto3.client("dynamodb", endpoint_url=endpoint, region_name="us-east-1")
    with closing(client):
        client.update_item(
            TableName=table,
            Key=key_of(key),
            UpdateExpression="SET body = :body" + " REMOVE v" * with_version,
            ExpressionAttributeValues={":body": {"N": "7"}},
        )


@pytest.mark.usefixtures("aws_credentials")
class TestOnDynamoDbLocal(MetadataStoreContract):
    @pytest.fixture
    async def table(self, dynamodb_local_endpoint: str) -> str:
        return await new_table(dynamodb_local_endpoint)

    @pytest.fixture
    def spoil(self, dynamodb_local_endpoint: str, table: str) -> Spoil:
        return partial(spoil_item, dynamodb_local_endpoint, table)

    @pytest.fixture
    def open(self, dynamodb_local_endpoint: str, table: str) -> Open:
        @asynccontextmanager
        async def open_store() -> AsyncIterator[MetadataStore]:
            async with opened(table, dynamodb_local_endpoint) as store:
                yield store

        return open_store


@pytest.mark.usefixtures("aws_credentials")
async def test_the_units_that_requests_took_are_counted(dynamodb_local_endpoint: str) -> None:
    table = await new_table(dynamodb_local_endpoint)
    # A request that is repeated, since its answer is late, would count twice.
    async with opened(table, dynamodb_local_endpoint) as store:
        usage = usage_of(store)
        assert usage is not None
        unlogged = Write(A, {"value": 1}, ABSENT, is_logged=False)
        await store.commit([unlogged])
        assert usage.write_units == 1
        await store.get(A)
        assert usage.read_units == 1
        with pytest.raises(VersionConflict):
            await store.commit([unlogged])
        await store.commit([Write(B, {"value": 1}, ABSENT)])
        # DynamoDB Local charges the parts of a transaction less than DynamoDB does.
        assert usage.write_units > 1
        assert usage.requests["update_item", "ok"] == 1
        assert usage.requests["update_item", "conflict"] == 1
        assert usage.requests["get_item", "ok"] >= 1
        assert usage.requests["transact_write_items", "ok"] == 1
        assert usage.seconds["update_item"] > 0


@pytest.mark.slow  # DynamoDB Local is the reference
@pytest.mark.usefixtures("aws_credentials")
class TestOnMiniStack(MetadataStoreContract):
    @pytest.fixture
    async def table(self, ministack_endpoint: str) -> str:
        return await new_table(ministack_endpoint)

    @pytest.fixture
    def spoil(self, ministack_endpoint: str, table: str) -> Spoil:
        return partial(spoil_item, ministack_endpoint, table)

    @pytest.fixture
    def open(self, ministack_endpoint: str, table: str) -> Open:
        @asynccontextmanager
        async def open_store() -> AsyncIterator[MetadataStore]:
            async with opened(table, ministack_endpoint) as store:
                yield store

        return open_store


@pytest.mark.usefixtures("aws_credentials")
class TestOnABadNetwork:
    """Requests and answers get lost between the store and DynamoDB Local."""

    @pytest.fixture
    def endpoint(self, dynamodb_local_endpoint: str) -> str:
        return dynamodb_local_endpoint

    @pytest.mark.parametrize(
        "writes",
        [
            [create(A)],
            [create(A, is_logged=False)],
            [create(A, is_logged=False), create(B, is_logged=False)],
            [create(A), create(B)],
        ],
    )
    @pytest.mark.parametrize("resets", [False, True])
    async def test_a_commit_whose_answer_was_lost_happens_once(
        self, endpoint: str, writes: list[Write], resets: bool
    ) -> None:
        table = await new_table(endpoint)
        async with LossyProxy(endpoint) as proxy, opened(table, proxy.url) as store:
            await store.get(A)  # Connect first: the loss shall hit the commit.
            await store.changes_since(START)
            proxy.lose_answers(1, resets=resets)
            await store.commit(writes)
            assert proxy.lost_answer_count == 1
            assert await store.get(A) == Item(A, 1, {"n": 1})
            version = (await store.changes_since(START)).version
            assert version == int(writes[0].is_logged)
            # Our own commit is no excuse for a later one that is really late.
            with pytest.raises(VersionConflict):
                await store.commit(writes)

    @pytest.mark.parametrize("is_logged", [True, False])
    async def test_a_commit_that_lost_is_told_so_even_if_an_answer_was_lost(
        self, endpoint: str, is_logged: bool
    ) -> None:
        table = await new_table(endpoint)
        async with (
            LossyProxy(endpoint) as proxy,
            opened(table, proxy.url) as store,
            opened(table, endpoint) as other,
        ):
            await other.commit([create(A, "theirs", is_logged=is_logged)])
            await store.changes_since(START)
            proxy.lose_answers(1)
            with pytest.raises(VersionConflict):
                await store.commit([create(A, "ours", is_logged=is_logged)])
            assert await store.get(A) == Item(A, 1, {"n": "theirs"})

    async def test_a_request_that_never_arrived_is_sent_again(self, endpoint: str) -> None:
        table = await new_table(endpoint)
        async with LossyProxy(endpoint) as proxy, opened(table, proxy.url) as store:
            await store.changes_since(START)
            proxy.lose_requests(2)
            await store.commit([create(A)])
            assert proxy.lost_request_count == 2
            assert (await store.changes_since(START)).version == 1

    @pytest.mark.parametrize("resets", [False, True])
    async def test_an_increment_whose_answer_was_lost_is_not_repeated(
        self, endpoint: str, resets: bool
    ) -> None:
        table = await new_table(endpoint)
        async with LossyProxy(endpoint) as proxy, opened(table, proxy.url) as store:
            await store.get(A)
            proxy.lose_answers(1, resets=resets)
            with pytest.raises(OutcomeUnknown):
                await store.increment(A, 5)
            assert await store.increment(A, 1) == 6

    async def test_a_delete_whose_answer_was_lost_is_unknown_or_done(self, endpoint: str) -> None:
        table = await new_table(endpoint)
        async with LossyProxy(endpoint) as proxy, opened(table, proxy.url) as store:
            await store.commit([create(A), create(B)])
            proxy.lose_answers(1)
            with pytest.raises(OutcomeUnknown):
                await store.commit([Write(A, None, 1, False)])
            proxy.lose_answers(1)
            await store.commit([Write(B, None, 1)])
            assert await store.list("letters") == []
            proxy.lose_answers(1)
            await store.commit([Write(A, None, ANY_VERSION, False)])

    async def test_answers_tell_the_time(self, endpoint: str) -> None:
        table = await new_table(endpoint)
        async with opened(table, endpoint) as store:
            assert isinstance(store, ClockedStore)
            assert store.heard_time is None
            await store.get(A)
            heard = store.heard_time
            assert heard is not None
            assert abs(heard.wall_ms - wall_clock_ms()) < 30_000
            assert abs(heard.steady_ms - steady_clock_ms()) < 30_000

    async def test_no_answer_at_all_is_an_unknown_outcome(self, endpoint: str) -> None:
        table = await new_table(endpoint)
        async with LossyProxy(endpoint) as proxy, opened(table, proxy.url) as store:
            await store.changes_since(START)
            proxy.lose_answers(1000)
            with pytest.raises((OutcomeUnknown, StoreUnavailable)):
                await store.commit([create(A)])
            proxy.lose_answers(0)
            assert await store.get(A) == Item(A, 1, {"n": 1})

    async def test_a_server_that_is_not_there_means_nothing_was_written(self) -> None:
        async with opened("nowhere", "http://127.0.0.1:9") as store:
            with pytest.raises(StoreUnavailable):
                await store.commit([create(A)])
            with pytest.raises(StoreUnavailable):
                await store.get(A)

    async def test_a_table_that_is_not_there_is_named_at_once(self, endpoint: str) -> None:
        async with opened("no-such-table", endpoint) as store:
            with pytest.raises(StoreUnavailable, match="ResourceNotFound"):
                await store.commit([create(A)], checks=[Check(B, 1)])

    async def test_writers_on_a_bad_network_lose_and_double_nothing(self, endpoint: str) -> None:
        """Every tenth answer is lost; each creation is still there once, in one version."""
        keys = numbered(12)

        async def write(store: MetadataStore, some: list[Write]) -> None:
            for one in some:
                await commit_until_known(store, one)

        table = await new_table(endpoint)
        async with (
            LossyProxy(endpoint) as proxy,
            opened(table, proxy.url) as one,
            opened(table, proxy.url) as other,
        ):
            proxy.lose_every_nth_answer(10)
            await asyncio.gather(
                write(one, [create(key) for key in keys[::2]]),
                write(other, [create(key) for key in keys[1::2]]),
            )
            proxy.lose_every_nth_answer(0)
            assert proxy.lost_answer_count > 0
            assert [item.id for item in await one.list("numbers")] == keys
            changes = await one.changes_since(START)
            assert (changes.version, changes.keys) == (len(keys), frozenset(keys))


@pytest.mark.usefixtures("aws_credentials")
async def test_changes_that_a_copy_of_the_table_lacks_are_read_from_the_newest_one(
    dynamodb_local_endpoint: str,
) -> None:
    """An eventually consistent read may miss entries; DynamoDB Local has them all at once."""
    table = await new_table(dynamodb_local_endpoint)
    client = boto3.client("dynamodb", endpoint_url=dynamodb_local_endpoint, region_name="us-east-1")
    key = key_of(changelog_key(2))
    seen: list[bool] = []

    def on_request(request: bytes) -> None:
        if b"DynamoDB_20120810.Query" not in request:
            return
        seen.append(json.loads(request.rpartition(b"\r\n\r\n")[2])["ConsistentRead"])
        if seen[-1]:
            client.put_item(TableName=table, Item=entry)
        else:
            client.delete_item(TableName=table, Key=key)

    with closing(client):
        async with opened(table, dynamodb_local_endpoint) as store:
            await store.commit([create(A)])
            await store.commit([create(B)])
            await store.commit([Write(A, {"n": 2}, 1)])
            assert (await store.changes_since(START)).version == 3
        entry = client.get_item(TableName=table, Key=key)["Item"]
        async with (
            LossyProxy(dynamodb_local_endpoint, on_request=on_request) as proxy,
            opened(table, proxy.url) as store,
        ):
            changes = await store.changes_since(START)
            assert changes == Changes(ClusterVersion(3), frozenset({A, B}))
    assert seen == [False, True]


@pytest.mark.usefixtures("aws_credentials")
async def test_a_damaged_changelog_makes_readers_load_everything(
    dynamodb_local_endpoint: str, caplog: pytest.LogCaptureFixture
) -> None:
    table = f"tidelog-{uuid.uuid4().hex}"
    async with opened(table, dynamodb_local_endpoint) as store:
        await store.create_table()
        await store.commit([create(A)])
        await store.commit([create(B)])
        client = boto3.client(
            "dynamodb", endpoint_url=dynamodb_local_endpoint, region_name="us-east-1"
        )
        with closing(client):
            entry = {**key_of(changelog_key(2)), "keys": {"S": "[["}}
            client.put_item(TableName=table, Item=entry)
        assert (await store.changes_since(START)).keys is None
        assert (await store.changes_since(START)).version == 2
        await store.commit([Write(A, {"n": 2}, 1)])
        assert (await store.changes_since(ClusterVersion(2))).keys == {A}
    reasons = [vars(r)["reason"] for r in caplog.records if r.levelname == "ERROR"]
    assert any(changelog_key(2).key in reason for reason in reasons)
