"""Creates objects in a bucket, each only if its key is absent.

A write is one PUT with ``If-None-Match: *``: of several writers one wins. obstore would repeat a
PUT whose answer was lost and then report «already there» for our own object. So writes are
repeated here, where it is known whether an earlier attempt may have succeeded; «already there»
is then ``OutcomeUnknown``.

Large objects are uploaded in parts to a staging key, from which S3 copies them to their own key,
again only if that is absent: S3 takes a condition on the copy, obstore none on parts. A crash
leaves a staging object or unfinished parts; a lifecycle rule on ``.staging/`` removes both.
"""

from __future__ import annotations

import asyncio
import mmap
import random
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError

from tidelog_core.errors import ObjectExists, OutcomeUnknown, StoreUnavailable
from tidelog_core.objects.key_rules import STAGING
from tidelog_core.objects.obstore_requests import tracked
from tidelog_core.objects.payload import Payload
from tidelog_core.objects.s3_clients import BACKOFF_S_MAX, BACKOFF_S_MIN
from tidelog_core.objects.s3_errors import (
    is_final,
    is_slowed,
    is_unsent,
    summary,
    write_failure,
)
from tidelog_core.objects.s3_session import S3Session

PART_SIZE_BYTES = 64 << 20
PART_CONCURRENCY = 4
WRITE_ATTEMPTS_MAX = 5
WRITE_TIMEOUT_S = 20.0  # of one PUT, in addition to the time for its bytes
WRITE_BYTES_PER_SECOND_MIN = 4 << 20  # One connection reaches twenty times that.


class S3Uploads:
    """Creates objects below a prefix of the session's bucket. Durable on return."""

    def __init__(
        self, session: S3Session, prefix: str, *, part_size_bytes: int, timeout_s: float
    ) -> None:
        """``timeout_s`` is for one PUT, in addition to the time for its bytes."""
        self._session = session
        self._prefix = prefix
        self._part_size_bytes = part_size_bytes
        self._timeout_s = timeout_s

    async def put(self, key: str, data: bytes | mmap.mmap, *, kms_key_id: str) -> None:
        """Create the object by one PUT, which is repeated if need be. Raises ``ObjectExists``."""
        timeout_s = self._timeout_s + len(data) / WRITE_BYTES_PER_SECOND_MIN

        async def put() -> None:
            async with asyncio.timeout(timeout_s):
                await tracked(
                    obstore.put_async(
                        self._session.writers(kms_key_id).putting,
                        self._prefix + key,
                        data,
                        mode="create",
                        use_multipart=False,
                    )
                )

        await self._create(key, put)

    async def put_in_parts(self, key: str, data: bytes | Path, *, kms_key_id: str) -> None:
        """Create the object from parts, if no object has the key. Raises ``ObjectExists``."""
        staged = f"{self._prefix}{STAGING}/{uuid.uuid4().hex}"
        try:
            try:
                await tracked(
                    obstore.put_async(
                        self._session.writers(kms_key_id).uploading_parts,
                        staged,
                        data,
                        use_multipart=True,
                        chunk_size=self._part_size_bytes,
                        max_concurrency=PART_CONCURRENCY,
                    )
                )
            except (BaseError, FileNotFoundError) as error:
                self._session.renew_if_expired(error)  # The caller begins the upload again.
                self._session.note_failure(error, "write")
                raise StoreUnavailable(
                    f"object {key!r} was not written: {summary(error)}"
                ) from error
            await self._create(
                key,
                lambda: tracked(
                    obstore.copy_async(
                        self._session.writers(kms_key_id).copying,
                        staged,
                        self._prefix + key,
                        overwrite=False,
                    )
                ),
            )
        finally:
            await _quietly(obstore.delete_async(self._session.clients.reading, [staged]))

    async def put_without_repeats(self, key: str, data: Payload, *, timeout_s: float) -> None:
        """Create the object by one PUT, which is not repeated. Raises ``ObjectExists``."""
        try:
            async with asyncio.timeout(timeout_s):
                await tracked(
                    obstore.put_async(
                        self._session.clients.putting,
                        self._prefix + key,
                        data if isinstance(data, bytes) else data.parts,  # obstore copies neither.
                        mode="create",
                        use_multipart=False,
                    )
                )
        except AlreadyExistsError:
            raise ObjectExists(key) from None
        except (BaseError, FileNotFoundError, TimeoutError) as error:
            self._session.note_failure(error, "write")
            if self._session.renew_if_expired(error) or is_slowed(error):
                raise StoreUnavailable(
                    f"object {key!r} was not written: {summary(error)}"
                ) from error
            raise write_failure(key, error) from error
        self._session.note_success("write")

    async def _create(self, key: str, attempt: Callable[[], Awaitable[object]]) -> None:
        """Run a conditional write until its outcome is known or attempts run out."""
        may_have_happened = False
        delay_s = BACKOFF_S_MIN
        failure: Exception | None = None
        for _ in range(WRITE_ATTEMPTS_MAX):
            if failure is not None:
                await asyncio.sleep(delay_s * random.uniform(0.5, 1.0))
                delay_s = min(2 * delay_s, BACKOFF_S_MAX)
            try:
                await attempt()
            except AlreadyExistsError as error:
                if "409 Conflict" in str(error):
                    failure = error  # Another write of this key is under way: retry.
                    continue
                if may_have_happened:
                    raise OutcomeUnknown(f"object {key!r} may be ours or another's") from error
                raise ObjectExists(key) from None
            except (BaseError, FileNotFoundError, TimeoutError) as error:
                failure = error
                if self._session.renew_if_expired(error):
                    continue
                if is_final(error):
                    break
                may_have_happened = may_have_happened or not is_unsent(error)
            else:
                self._session.note_success("write")
                return
        assert failure is not None
        self._session.note_failure(failure, "write")
        if may_have_happened:
            raise OutcomeUnknown(
                f"object {key!r} may not be written: {summary(failure)}"
            ) from failure
        raise StoreUnavailable(f"object {key!r} was not written: {summary(failure)}") from failure


async def _quietly(deletion: Awaitable[object]) -> None:
    try:
        await tracked(deletion)
    except (BaseError, FileNotFoundError):
        return  # The lifecycle rule removes it.
