"""Lists a bucket through botocore, and reads its lifecycle rules.

obstore fails a whole page of a listing for one key that is no valid path (``a//b``,
``a/../b``), and drops the slash at the end of a key. A writer of one such object could so stop
all listings. botocore returns every key unchanged.

This is the only place that knows botocore's exceptions of S3.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Any

import aioboto3
from aiobotocore.config import AioConfig
from botocore.exceptions import BotoCoreError, ClientError

from tidelog_core.errors import StoreUnavailable
from tidelog_core.objects.expiry import ExpiryRule
from tidelog_core.objects.s3_refusals import Refusals

PAGE_SIZE_MAX = 1000  # Source: S3 API reference, ListObjectsV2.
ATTEMPTS_MAX = 6
CONNECT_TIMEOUT_S = 5.0
CLOSE_TIMEOUT_S = 5.0  # Then calls that a close waits for are cut off.
DEFAULT_REGION = "us-east-1"  # obstore's
EXPIRED = frozenset({"ExpiredToken", "RequestExpired"})
NO_RULES = "NoSuchLifecycleConfiguration"
TRANSIENT = frozenset({408, 409, 429})  # statuses below 500 that asking again may help


@dataclass(frozen=True, slots=True)
class ListedObject:
    """An object under its whole key."""

    path: str
    size_bytes: int
    modified_ms: int  # Unix time


@dataclass(slots=True, eq=False)
class _Client:
    """A client with its connections. A task closes it, at the latest when the event loop ends."""

    calls: Any
    leave: asyncio.Event
    keeper: asyncio.Task[None]
    running: set[asyncio.Task[dict[str, Any]]] = field(default_factory=set)
    is_retired: bool = False  # to be closed when its last call has ended
    is_cut: bool = False  # Its calls were cancelled.

    def retire(self) -> None:
        self.is_retired = True
        if not self.running:
            self.leave.set()

    async def call(self, name: str, request: dict[str, Any]) -> dict[str, Any]:
        """Return the answer. Raises ``StoreUnavailable`` if the call is cut off."""
        task = asyncio.create_task(getattr(self.calls, name)(**request))
        self.running.add(task)
        try:
            answer: dict[str, Any] = await task
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if self.is_cut and not (caller is not None and caller.cancelling()):
                raise StoreUnavailable("the store was closed before S3 answered") from None
            raise
        else:
            return answer
        finally:
            self.running.discard(task)
            if self.is_retired and not self.running:
                self.leave.set()

    async def close(self, timeout_s: float) -> None:
        """Let the calls end, and close it; after the time they are cut off."""
        self.retire()
        _, open_ones = await asyncio.wait([self.keeper], timeout=timeout_s)
        if open_ones:
            self.is_cut = True
            for task in self.running:
                task.cancel()
            await asyncio.wait([self.keeper])

    @property
    def is_usable(self) -> bool:
        """Whether it belongs to the running event loop: the last call may have been on another."""
        is_ours = self.keeper.get_loop() is asyncio.get_running_loop()
        return is_ours and not (self.is_retired or self.keeper.done())


class S3Listing:
    """Lists one bucket. For the tasks of one event loop at a time.

    One client serves all listings until ``close``: making one costs milliseconds of CPU time, and
    a connection.
    """

    def __init__(
        self,
        bucket: str,
        *,
        endpoint: str | None,
        region: str | None,
        read_timeout_s: float,
        refusals: Refusals,
    ) -> None:
        self._bucket = bucket
        self._endpoint = endpoint
        self._region = region
        self._refusals = refusals
        # obstore names the bucket in the path too, so that one endpoint does for both.
        self._config = AioConfig(
            connect_timeout=CONNECT_TIMEOUT_S,
            read_timeout=read_timeout_s,
            retries={"mode": "standard", "total_max_attempts": ATTEMPTS_MAX},
            s3={"addressing_style": "path"},
        )
        # Made by the first listing: it holds the credentials, and is costly to load.
        self._session: Any = None
        self._client: _Client | None = None

    async def pages(
        self, prefix: str, *, start_after: str
    ) -> AsyncGenerator[Sequence[ListedObject], None]:
        """Yield the objects below the prefix and after the other key, in key order.

        Raises ``StoreUnavailable``.
        """
        request: dict[str, Any] = {
            "Bucket": self._bucket,
            "Prefix": prefix,
            "MaxKeys": PAGE_SIZE_MAX,
        }
        if start_after:
            request["StartAfter"] = start_after
        is_renewed = False
        while True:
            try:
                answer = await self._call("list_objects_v2", request)
            except (ClientError, BotoCoreError) as error:
                if _has_expired(error) and not is_renewed:
                    self._renew()
                    is_renewed = True
                    continue
                problem = " ".join(str(error).split())
                if _is_refusal(error):
                    self._refusals.note_refusal("list", problem)
                raise StoreUnavailable(f"listing {prefix!r} failed: {problem}") from error
            is_renewed = False
            self._refusals.note_success("list")
            yield [_listed(found) for found in answer.get("Contents", ())]
            if not answer.get("IsTruncated"):
                return
            request["ContinuationToken"] = answer["NextContinuationToken"]

    async def expiry_rules(self) -> list[ExpiryRule]:
        """Return the enabled rules that delete objects. Raises ``StoreUnavailable``."""
        try:
            answer = await self._call(
                "get_bucket_lifecycle_configuration", {"Bucket": self._bucket}
            )
        except (ClientError, BotoCoreError) as error:
            if isinstance(error, ClientError) and error.response["Error"].get("Code") == NO_RULES:
                return []
            problem = " ".join(str(error).split())
            raise StoreUnavailable(f"lifecycle rules cannot be read: {problem}") from error
        return [rule for found in answer.get("Rules", ()) if (rule := _expiry_rule(found))]

    async def close(self) -> None:
        """Close the client, once its calls have ended. A listing after it opens another one.

        After some seconds calls are cut off: they raise ``StoreUnavailable``.
        """
        client, self._client = self._client, None
        if client is not None and client.is_usable:
            await client.close(CLOSE_TIMEOUT_S)

    def _renew(self) -> None:
        """Load the credentials again, for the next call."""
        self._session = None
        if self._client is not None:
            self._client.retire()
            self._client = None

    async def _call(self, name: str, request: dict[str, Any]) -> dict[str, Any]:
        """Return the answer. Raises as botocore does, and ``StoreUnavailable``."""
        client = self._client
        if client is None or not client.is_usable:
            client = await self._open()
        return await client.call(name, request)

    async def _open(self) -> _Client:
        context = self._context()
        calls = await context.__aenter__()
        leave = asyncio.Event()

        async def keep() -> None:
            try:
                await leave.wait()
            finally:
                await context.__aexit__(None, None, None)

        client = _Client(calls, leave, asyncio.create_task(keep(), name="S3 listing client"))
        if self._client is None or not self._client.is_usable:
            self._client = client
        else:
            client.is_retired = True  # Another task was faster: this one is for one call.
        return client

    def _context(self) -> Any:
        """Return a client to enter. Raises ``BotoCoreError``."""
        if self._session is None:
            self._session = aioboto3.Session()
        # obstore reads the nodes' region from a variable that botocore does not read.
        region = self._region or os.environ.get("AWS_REGION") or self._session.region_name
        return self._session.client(
            "s3",
            region_name=region or DEFAULT_REGION,
            endpoint_url=self._endpoint,
            config=self._config,
        )


def _listed(found: dict[str, Any]) -> ListedObject:
    return ListedObject(found["Key"], found["Size"], int(found["LastModified"].timestamp() * 1000))


def _expiry_rule(found: dict[str, Any]) -> ExpiryRule | None:
    """Return the rule, ``None`` if it deletes no object without tags by its age."""
    expiration = found.get("Expiration", {})
    days, date = expiration.get("Days"), expiration.get("Date")
    chosen = found.get("Filter", {})
    chosen = {**chosen, **chosen.get("And", {})}
    if found.get("Status") != "Enabled" or not (days or date):
        return None
    if chosen.get("Tag") or chosen.get("Tags"):
        return None
    prefix = chosen.get("Prefix") or found.get("Prefix") or ""
    when = f"after {days} days" if days else f"from {date:%Y-%m-%d} on"
    return ExpiryRule(found.get("ID", ""), prefix, when)


def _has_expired(error: Exception) -> bool:
    return isinstance(error, ClientError) and error.response["Error"].get("Code") in EXPIRED


def _is_refusal(error: Exception) -> bool:
    if not isinstance(error, ClientError):
        return False
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return 300 <= status < 500 and status not in TRANSIENT
