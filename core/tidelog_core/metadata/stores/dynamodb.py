"""The metadata store of a deployed cluster: one DynamoDB table.

A commit is one ``TransactWriteItems``: the caller's writes and checks, the increment of the
cluster version, and the changelog entry of the new version. All logged commits of a cluster
write the version item. A conflict there is not the caller's: the transaction is retried on the
next version. Within a process, logged commits take turns, so only those of different processes
conflict. A single unlogged write needs no transaction and costs half.

A call that timed out may have been carried out. It is repeated with the same client token, which
DynamoDB carries out at most once in ten minutes. If the repeated call reports a failed condition,
the changelog entry (or the item) is read first: it has the id of the commit that wrote it. If
that cannot be read either, the caller gets ``OutcomeUnknown``.
"""

from __future__ import annotations

import asyncio
import logging
import random
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from tidelog_core.batched import batched
from tidelog_core.errors import (
    CorruptItem,
    OutcomeUnknown,
    StoreUnavailable,
    VersionConflict,
)
from tidelog_core.metadata.store import (
    ABSENT,
    ALL_KEYS,
    Changes,
    Check,
    ClusterVersion,
    HeardTime,
    Item,
    ItemKey,
    KeyRange,
    Write,
)
from tidelog_core.metadata.stores import dynamodb_items as items
from tidelog_core.metadata.stores.commit import CHANGELOG_LENGTH, require_valid
from tidelog_core.metadata.stores.dynamodb_attempts import ATTEMPTS_MAX, Attempts, turn_delay_s_max
from tidelog_core.metadata.stores.dynamodb_client import READ_TIMEOUT, DynamoDbClient
from tidelog_core.metadata.stores.dynamodb_failures import Failure, Outcome, classify
from tidelog_core.metadata.stores.usage import StoreUsage

logger = logging.getLogger(__name__)

GET_AT_ONCE = 100  # items; the limit of one BatchGetItem
GETS_IN_FLIGHT_MAX = 4  # BatchGetItem calls of one reading


class DynamoDbMetadataStore:
    """A ``MetadataStore`` in one table. For the tasks of one event loop."""

    def __init__(
        self,
        table: str,
        *,
        region: str | None = None,
        endpoint: str | None = None,
        changelog_length: int = CHANGELOG_LENGTH,
        read_timeout: float = READ_TIMEOUT,
    ) -> None:
        self._table = table
        self._changelog_length = changelog_length
        self._client = DynamoDbClient(
            table, region=region, endpoint=endpoint, read_timeout=read_timeout
        )
        self._logging = asyncio.Lock()
        self._version_guess: ClusterVersion | None = None

    @property
    def usage(self) -> StoreUsage:
        """The requests so far, and the units that DynamoDB has charged for them."""
        return self._client.usage

    @property
    def heard_time(self) -> HeardTime | None:
        """The server's time in the last answer, to the second; ``None`` before the first answer."""
        return self._client.heard_time

    async def get(self, id: ItemKey) -> Item | None:
        """Return the item, or ``None`` if it does not exist."""
        stored = await self._get(id)
        return None if stored is None else stored.item

    async def get_many(self, ids: Collection[ItemKey]) -> dict[ItemKey, Item]:
        """Return the items that exist."""
        found: dict[ItemKey, Item] = {}
        requests = list(batched(tuple(ids), GET_AT_ONCE))
        for in_flight in batched(requests, GETS_IN_FLIGHT_MAX):
            for answer in await asyncio.gather(*map(self._get_batch, in_flight)):
                found.update(answer)
        return found

    async def list(
        self, collection: str, *, prefix: str = "", keys: KeyRange = ALL_KEYS
    ) -> list[Item]:
        """Return the collection's items whose key starts with ``prefix``, in key order."""
        query = items.listing_query(collection, prefix, keys)
        if query is None:
            return []
        listed = [items.parse_item(found).item async for found in self._query(query, keys.limit)]
        if listed and listed[-1].id.key == keys.end:
            listed.pop()
        return listed

    async def commit(self, writes: Sequence[Write], *, checks: Sequence[Check] = ()) -> None:
        """Do all the writes or none. A caller that is cancelled does not know which."""
        require_valid(writes, checks)
        logged = [write.id for write in writes if write.is_logged]
        if logged:
            async with self._logging:
                await self._commit_logged(writes, checks, logged)
        elif len(writes) == 1 and not checks:
            await self._commit_single(writes[0])
        else:
            await self._commit_unlogged(writes, checks)

    async def changes_since(self, version: ClusterVersion) -> Changes:
        """Return the keys that logged writes touched after ``version``."""
        newest = await self._cluster_version()
        if version == newest:
            return Changes(newest, frozenset())
        if not newest - self._changelog_length <= version < newest:
            return Changes(newest, None)
        entries = await self._changelog(version, newest)
        if len(entries) != newest - version:
            return Changes(newest, None)  # The oldest were pruned while we read.
        keys: set[ItemKey] = set()
        for entry in entries:
            try:
                keys.update(items.parse_changelog(entry))
            except CorruptItem as error:
                logger.error(
                    "changelog cannot be read, everything is read again",
                    extra={"reason": str(error)},
                )
                return Changes(newest, None)
        return Changes(newest, frozenset(keys))

    async def _changelog(
        self, after: ClusterVersion, newest: ClusterVersion
    ) -> Sequence[items.Attributes]:
        """Return the existing entries of the versions in (after, newest].

        An entry never changes, and the newest version is known. So an eventually consistent read,
        at half the price, is enough, unless it lacks entries: then a consistent read follows.
        """
        query = items.changelog_query(after + 1, newest)
        cheap = {**query, "ConsistentRead": False}
        entries = [entry async for entry in self._query(cheap)]
        if len(entries) != newest - after:
            entries = [entry async for entry in self._query(query)]
        return entries

    async def increment(self, id: ItemKey, by: int) -> int:
        """Add to the item's ``value`` (0 where absent) and return the sum. Never logged."""
        request = items.increment_request(self._table, id, by)
        attempts = Attempts()
        while True:
            try:
                answer = await self._client.call("update_item", request)
            except (ClientError, BotoCoreError) as error:
                failure = classify(error)
                if failure.outcome is Outcome.UNKNOWN:
                    raise OutcomeUnknown(f"increment of {id}: {failure.reason}") from error
                await attempts.again(failure, error)
            else:
                return int(answer["Attributes"]["value"]["N"])

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def create_table(self) -> None:
        """Create the table unless it is there, and wait until it can be used."""
        await self._client.create_table()

    # -- commits ---------------------------------------------------------------------------

    async def _commit_logged(
        self, writes: Sequence[Write], checks: Sequence[Check], logged: Sequence[ItemKey]
    ) -> None:
        """Commit on the next cluster version, after other processes' commits if they come first."""
        write_id = uuid.uuid4().hex
        actions, ids = items.transaction(self._table, writes, checks, write_id)
        for losses in range(1, ATTEMPTS_MAX + 1):
            after = self._version_guess
            if after is None:
                after = await self._cluster_version()
            step = items.logging_actions(
                self._table,
                logged,
                after=after,
                write_id=write_id,
                changelog_length=self._changelog_length,
            )
            entry = items.changelog_key(after + 1)
            failure = await self._transact(
                actions + step, partial(self._is_made_by, entry, write_id)
            )
            if failure is None:
                self._version_guess = ClusterVersion(after + 1)
                return
            self._version_guess = None
            lost = [ids[index] for index in failure.failed_actions if index < len(ids)]
            if lost:
                raise VersionConflict([(key.collection, key.key) for key in lost])
            await asyncio.sleep(random.uniform(0, turn_delay_s_max(losses)))
        raise StoreUnavailable(f"no turn at the cluster version in {ATTEMPTS_MAX} attempts")

    async def _commit_unlogged(self, writes: Sequence[Write], checks: Sequence[Check]) -> None:
        write_id = uuid.uuid4().hex
        actions, ids = items.transaction(self._table, writes, checks, write_id)
        if not actions:
            return
        put = next((write.id for write in writes if write.body is not None), None)

        async def is_done() -> bool:
            return put is not None and await self._is_made_by(put, write_id)

        failure = await self._transact(actions, is_done)
        if failure is not None:
            lost = [ids[index] for index in failure.failed_actions]
            raise VersionConflict([(key.collection, key.key) for key in lost])

    async def _transact(
        self, actions: Sequence[dict[str, Any]], is_done: Callable[[], Awaitable[bool]]
    ) -> Failure | None:
        """Carry out a transaction once; return the failure if a condition did not hold.

        ``is_done`` decides from the stored items whether it was carried out.
        """
        request = {"TransactItems": actions, "ClientRequestToken": uuid.uuid4().hex}
        attempts = Attempts()
        while True:
            try:
                await self._client.call("transact_write_items", request)
            except (ClientError, BotoCoreError) as error:
                failure = classify(error)
                if failure.outcome is Outcome.CONDITION_FAILED:
                    if attempts.may_be_done and await is_done():
                        return None
                    return failure
                try:
                    await attempts.again(failure, error)
                except OutcomeUnknown:
                    if await is_done():
                        return None
                    raise
            else:
                return None

    async def _commit_single(self, write: Write) -> None:
        """Write one item by itself. Not in the changelog, so no transaction is needed."""
        write_id = uuid.uuid4().hex
        attempts = Attempts()
        while True:
            try:
                if write.body is None:
                    await self._client.call("delete_item", items.delete_request(self._table, write))
                else:
                    request = items.put_request(self._table, write, write_id)
                    await self._client.call("update_item", request)
            except (ClientError, BotoCoreError) as error:
                failure = classify(error)
                if failure.outcome is Outcome.CONDITION_FAILED:
                    if attempts.may_be_done and await self._settle_single(write, write_id):
                        return
                    raise VersionConflict([(write.id.collection, write.id.key)]) from error
                try:
                    await attempts.again(failure, error)
                except OutcomeUnknown:
                    if await self._is_made_by(write.id, write_id):
                        return
                    raise
            else:
                return

    async def _settle_single(self, write: Write, write_id: str) -> bool:
        """Whether a write with an unknown outcome was carried out, now that its condition fails.

        Raises ``OutcomeUnknown`` if later writes have replaced the evidence.
        """
        stored = await self._get(write.id)
        if stored is not None and stored.write_id == write_id:
            return True
        version = ABSENT if stored is None else stored.item.version
        if write.body is None:
            is_known = version > write.expected_version
        else:
            is_known = version == write.expected_version + 1
        if not is_known:
            raise OutcomeUnknown(f"{write.id} is at version {version}; traces are gone")
        return False

    async def _is_made_by(self, id: ItemKey, write_id: str) -> bool:
        attributes = await self._get_attributes(id)
        return attributes is not None and attributes.get("w") == {"S": write_id}

    # -- reads -----------------------------------------------------------------------------

    async def _cluster_version(self) -> ClusterVersion:
        found = await self._get_attributes(items.CLUSTER_VERSION)
        try:
            version = ClusterVersion(0 if found is None else int(found["n"]["N"]))
        except (KeyError, ValueError) as error:
            # Every logged commit needs it: without it the store is unavailable.
            damaged = StoreUnavailable(
                f"table {self._table}: the cluster version's item is damaged: {error!r}"
            )
            damaged.hint = "restore the table, see docs/restore.md"
            raise damaged from error
        self._version_guess = version
        return version

    async def _get(self, id: ItemKey) -> items.StoredItem | None:
        found = await self._get_attributes(id)
        return None if found is None else items.parse_item(found)

    async def _get_batch(self, ids: Sequence[ItemKey]) -> dict[ItemKey, Item]:
        found: dict[ItemKey, Item] = {}
        wanted: dict[str, Any] = items.batch_get_request(self._table, ids)
        attempts = Attempts()
        while wanted:
            answer = await self._client.read("batch_get_item", {"RequestItems": wanted})
            stored = [items.parse_item(one).item for one in answer["Responses"][self._table]]
            found.update((item.id, item) for item in stored)
            wanted = answer.get("UnprocessedKeys") or {}
            if wanted and not stored:  # Throttled: without a pause it would stay so.
                failure = Failure(Outcome.NOT_NOW, "no item of a batch was read")
                await attempts.again(failure, TimeoutError(failure.reason))
        return found

    async def _get_attributes(self, id: ItemKey) -> items.Attributes | None:
        request = {"TableName": self._table, "Key": items.key_of(id), "ConsistentRead": True}
        answer = await self._client.read("get_item", request)
        found: items.Attributes | None = answer.get("Item")
        return found

    async def _query(
        self, query: Mapping[str, Any], limit: int | None = None
    ) -> AsyncIterator[items.Attributes]:
        """Yield the items of the query, page after page, at most ``limit`` of them."""
        request: dict[str, Any] = {"TableName": self._table, "ConsistentRead": True, **query}
        left = limit
        while left is None or left > 0:
            if left is not None:
                request["Limit"] = left
            answer = await self._client.read("query", request)
            for found in answer["Items"]:
                yield found
            if "LastEvaluatedKey" not in answer:
                return
            if left is not None:
                left -= len(answer["Items"])
            request["ExclusiveStartKey"] = answer["LastEvaluatedKey"]
