"""Sends requests to a DynamoDB table, counts them, and renews the client's credentials."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from email.utils import parsedate_to_datetime
from typing import Any

import aioboto3
from aiobotocore.config import AioConfig
from botocore.exceptions import BotoCoreError, ClientError, CredentialRetrievalError

from tidelog_core.clock import steady_clock_ms
from tidelog_core.errors import StoreUnavailable
from tidelog_core.metadata.store import HeardTime
from tidelog_core.metadata.stores import dynamodb_items as items
from tidelog_core.metadata.stores.dynamodb_attempts import Attempts
from tidelog_core.metadata.stores.dynamodb_failures import Failure, Outcome, classify
from tidelog_core.metadata.stores.usage import CONFLICT, FAILED, OK, StoreUsage

CONNECT_TIMEOUT, READ_TIMEOUT = 3.0, 5.0  # seconds
CONNECTIONS_MAX = 50
RENEW_INTERVAL = 2.0  # seconds
CLIENTS_KEPT = 5  # On the oldest, no call of CONNECT_TIMEOUT + READ_TIMEOUT is under way.
_READS = frozenset({"get_item", "batch_get_item", "query"})
_OUTCOMES = {Outcome.CONDITION_FAILED: CONFLICT, Outcome.NOT_NOW: "throttled"}


class DynamoDbClient:
    """A connection to one table. For the tasks of one event loop."""

    def __init__(
        self, table: str, *, region: str | None, endpoint: str | None, read_timeout: float
    ) -> None:
        self.usage = StoreUsage()
        self.heard_time: HeardTime | None = None  # the server's time in the last answer
        self._heard_date = ""  # the header that it was read from
        self._table = table
        self._region = region
        self._endpoint = endpoint
        self._config = AioConfig(
            connect_timeout=CONNECT_TIMEOUT,
            read_timeout=read_timeout,
            max_pool_connections=CONNECTIONS_MAX,
            # All retries are made by callers: one by botocore could turn a commit that
            # was carried out into a conflict with itself.
            retries={"total_max_attempts": 1},
        )
        self._opened: list[AsyncExitStack] = []  # closes the clients, the newest last
        self._client: Any = None
        self._connected_at = 0.0  # the loop's time
        self._opening = asyncio.Lock()

    async def call(self, operation: str, request: Mapping[str, Any]) -> Any:
        """Send one request. Raises ``ClientError`` and ``BotoCoreError``."""
        client = await self._connected()
        begun_ms, outcome = steady_clock_ms(), FAILED
        try:
            answer = await getattr(client, operation)(**request, ReturnConsumedCapacity="TOTAL")
            outcome = OK
            self._note_time(answer, begun_ms)
            self._note_units(operation, answer)
            return answer
        except (ClientError, BotoCoreError) as error:
            found = classify(error).outcome
            outcome = _OUTCOMES.get(found, FAILED)
            if found is Outcome.EXPIRED:
                await self._renew(client)
            raise
        except RuntimeError as error:
            if "credentials are still expired" not in str(error):
                raise
            # botocore raises this if a role's endpoint has no newer credentials yet.
            raise CredentialRetrievalError(provider="refresh", error_msg=str(error)) from error
        finally:
            self.usage.note(operation, outcome, (steady_clock_ms() - begun_ms) / 1000)

    async def read(self, operation: str, request: Mapping[str, Any]) -> Any:
        """Send a read until it is answered. Raises ``StoreUnavailable``."""
        attempts = Attempts()
        while True:
            try:
                return await self.call(operation, request)
            except (ClientError, BotoCoreError) as error:
                failure = classify(error)
                if failure.outcome is Outcome.UNKNOWN:  # A read that failed changed nothing.
                    failure = Failure(Outcome.UNREACHABLE, failure.reason)
                await attempts.again(failure, error)

    async def create_table(self) -> None:
        """Create the table unless it is there, and wait until it can be used."""
        client = await self._connected()
        try:
            await client.create_table(TableName=self._table, **items.TABLE_DEFINITION)
        except client.exceptions.ResourceInUseException:
            pass
        except (ClientError, BotoCoreError) as error:
            raise StoreUnavailable(f"table {self._table}: {error}") from error
        await client.get_waiter("table_exists").wait(
            TableName=self._table, WaiterConfig={"Delay": 1, "MaxAttempts": 60}
        )

    async def close(self) -> None:
        """Close the connections."""
        self._client = None
        while self._opened:
            await self._opened.pop().aclose()

    def _note_units(self, operation: str, answer: Mapping[str, Any]) -> None:
        consumed = answer.get("ConsumedCapacity") or ()
        tables = (consumed,) if isinstance(consumed, Mapping) else consumed
        units = sum(float(table.get("CapacityUnits", 0.0)) for table in tables)
        if operation in _READS:
            self.usage.read_units += units
        else:
            self.usage.write_units += units

    def _note_time(self, answer: Mapping[str, Any], begun_ms: float) -> None:
        """Take the time from the answer to a request begun at ``begun_ms``."""
        date = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date", "")
        if date == self._heard_date:
            return
        self._heard_date = date
        try:
            wall_s = parsedate_to_datetime(date).timestamp()
        except ValueError:
            return  # A proxy may have sent a bad header. No request fails for it.
        self.heard_time = HeardTime(round(wall_s * 1000), begun_ms)

    async def _connected(self) -> Any:
        """Return the client, made on first use. Making it reads files, so not on creation."""
        async with self._opening:
            if self._client is None:
                self._client = await self._connect()
            return self._client

    async def _connect(self) -> Any:
        client = aioboto3.Session().client(
            "dynamodb",
            region_name=self._region,
            endpoint_url=self._endpoint,
            config=self._config,
        )
        opened = AsyncExitStack()
        try:
            connected = await opened.enter_async_context(client)
        except BotoCoreError as error:
            raise StoreUnavailable(f"table {self._table}: {error}") from error
        self._opened.append(opened)
        self._connected_at = asyncio.get_running_loop().time()
        return connected

    async def _renew(self, client: Any) -> None:
        """Replace the client, so that the next call loads the credentials again.

        botocore does so by itself only shortly before the expiry that it knows. Calls may be
        under way on the replaced client, so the newest ``CLIENTS_KEPT`` stay open.
        """
        async with self._opening:
            age = asyncio.get_running_loop().time() - self._connected_at
            if client is self._client and age >= RENEW_INTERVAL:
                self._client = await self._connect()
                for opened in self._opened[:-CLIENTS_KEPT]:
                    await opened.aclose()
                del self._opened[:-CLIENTS_KEPT]
