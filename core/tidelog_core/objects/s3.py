"""An object store in an S3 bucket, through obstore.

Objects are written as ``s3_uploads`` says: each once, by one PUT, or in parts above
``multipart_threshold``. Uploads have the checksum that ``s3_checksums`` names. Parts, and the few
objects that are replaced, have SHA-256 and are signed with their bytes wherever they go: they are
rare.

Callers retry refusals of S3 (wrong credentials, a policy, a missing bucket) like other failures;
``Refusals`` logs them. ``s3_errors`` recognizes them.
"""

from __future__ import annotations

import asyncio
import mmap
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import obstore
from obstore.exceptions import BaseError

from tidelog_core.batched import batched
from tidelog_core.errors import ObjectExists, ObjectNotFound, StoreUnavailable
from tidelog_core.objects.key_rules import STAGING, check_key, check_range, may_start_a_key
from tidelog_core.objects.obstore_requests import tracked
from tidelog_core.objects.payload import Payload
from tidelog_core.objects.s3_errors import is_refusal, summary, write_failure
from tidelog_core.objects.s3_session import S3Session
from tidelog_core.objects.s3_uploads import PART_SIZE_BYTES, WRITE_TIMEOUT_S, S3Uploads
from tidelog_core.objects.store import ObjectMeta

if TYPE_CHECKING:
    from tidelog_core.objects.expiry import ExpiryRule
    from tidelog_core.objects.s3_listing import S3Listing

T = TypeVar("T")

MULTIPART_THRESHOLD_BYTES = 1 << 30  # One PUT takes at most 5 GiB. Source: S3 user guide.
READ_TIMEOUT_S = 15.0  # without a byte of an answer
DELETE_KEYS_MAX = 1000  # one DeleteObjects call. Source: S3 API reference.


class S3ObjectStore:
    """An ``ObjectStore`` in a bucket, below a prefix. Durable on return.

    Region, endpoint and credentials are those of the AWS environment variables, the
    container's or the instance's role, unless given.
    """

    def __init__(
        self,
        bucket: str,
        *,
        prefix: str = "",
        endpoint: str | None = None,
        region: str | None = None,
        multipart_threshold: int = MULTIPART_THRESHOLD_BYTES,
        part_size_bytes: int = PART_SIZE_BYTES,
        read_timeout_s: float = READ_TIMEOUT_S,
        write_timeout_s: float = WRITE_TIMEOUT_S,
    ) -> None:
        self._prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        self._multipart_threshold = multipart_threshold
        self._bucket = bucket
        self._endpoint = endpoint
        self._region = region
        self._read_timeout_s = read_timeout_s
        self._session = S3Session(
            bucket, endpoint=endpoint, region=region, read_timeout_s=read_timeout_s
        )
        self._uploads = S3Uploads(
            self._session, self._prefix, part_size_bytes=part_size_bytes, timeout_s=write_timeout_s
        )
        self._listing: S3Listing | None = None  # made by the first listing

    async def put(self, key: str, data: bytes, *, kms_key_id: str = "") -> None:
        """Store ``data``, encrypted with the key of KMS if one is named.

        Raises ``ObjectExists``.
        """
        check_key(key)
        if len(data) > self._multipart_threshold:
            await self._put_in_parts(key, data, kms_key_id)
        else:
            await self._uploads.put(key, data, kms_key_id=kms_key_id)

    async def put_once(self, key: str, data: Payload, *, timeout_s: float) -> None:
        """Store ``data`` with one PUT, which is not repeated; see ``OneAttemptStore``."""
        check_key(key)
        await self._uploads.put_without_repeats(key, data, timeout_s=timeout_s)

    async def put_file(self, key: str, path: Path, *, kms_key_id: str = "") -> None:
        """Store the file's bytes, as they are at the call. The rest is as in ``put``."""
        check_key(key)
        size_bytes = (await asyncio.to_thread(path.stat)).st_size
        if size_bytes > self._multipart_threshold:
            await self._put_in_parts(key, path, kms_key_id)
        else:
            # obstore sends a mapping without copying it, and would read a path whole.
            mapped = await asyncio.to_thread(_map, path)
            await self._uploads.put(key, mapped, kms_key_id=kms_key_id)

    async def replace(self, key: str, data: bytes) -> None:
        """Store ``data`` whether or not the key exists; readers see the old or the new."""
        check_key(key)

        async def put() -> None:
            await tracked(
                obstore.put_async(
                    # Manifests are small: the answer comes within the time-out of reads.
                    self._session.clients.reading,
                    self._prefix + key,
                    data,
                    mode="overwrite",
                    use_multipart=False,
                )
            )

        try:
            await self._session.request("write", put)
        except (BaseError, FileNotFoundError) as error:
            self._session.note_failure(error, "write")
            raise write_failure(key, error) from error

    async def get(self, key: str) -> bytes:
        """Return the whole object. Raises ``ObjectNotFound``."""
        check_key(key)

        async def read() -> bytes:
            result = await tracked(
                obstore.get_async(self._session.clients.reading, self._prefix + key)
            )
            return bytes(await tracked(result.bytes_async()))

        return await self._read(key, read)

    async def get_range(self, key: str, start: int, end: int) -> bytes | memoryview:
        """Return bytes ``[start, end)``, fewer only at the end of the object."""
        check_key(key)
        check_range(start, end)
        if start == end:
            await self.head(key)
            return b""

        async def read() -> memoryview:
            found = await tracked(
                obstore.get_range_async(
                    self._session.clients.reading, self._prefix + key, start=start, end=end
                )
            )
            return memoryview(found)  # Cold reads are large, and a copy stops the event loop.

        try:
            return await self._read(key, read)
        except StoreUnavailable as error:
            if isinstance(error.__cause__, Exception) and is_refusal(error.__cause__):
                raise
            # S3 refuses a range that starts at or past the end, in every form.
            if start >= (await self.head(key)).size_bytes:
                return b""
            raise

    async def head(self, key: str) -> ObjectMeta:
        """Return the object's metadata. Raises ``ObjectNotFound``."""
        check_key(key)

        async def read() -> ObjectMeta:
            found = await tracked(
                obstore.head_async(self._session.clients.reading, self._prefix + key)
            )
            return self._meta(found)

        return await self._read(key, read)

    async def list(self, prefix: str, *, start_after: str = "") -> AsyncIterator[ObjectMeta]:
        """Yield the objects whose key starts with ``prefix``, in key order."""
        if not may_start_a_key(prefix):
            return
        pages = self._listed().pages(
            self._prefix + prefix, start_after=self._prefix + start_after if start_after else ""
        )
        async with aclosing(pages):
            async for page in pages:
                for found in page:
                    key = found.path.removeprefix(self._prefix)
                    if not key.startswith(f"{STAGING}/"):
                        yield ObjectMeta(key, found.size_bytes, found.modified_ms)

    async def expiry_rules(self) -> Sequence[ExpiryRule]:
        """Return the bucket's rules that delete objects of this store by age.

        Needs the right to ``s3:GetLifecycleConfiguration``. Raises ``StoreUnavailable``.
        """
        rules: list[ExpiryRule] = []
        for rule in await self._listed().expiry_rules():
            if rule.prefix.startswith(self._prefix):  # It deletes some objects of the store.
                rules.append(rule._replace(prefix=rule.prefix.removeprefix(self._prefix)))
            elif self._prefix.startswith(rule.prefix):  # It deletes all of them.
                rules.append(rule._replace(prefix=""))
        return rules

    def _listed(self) -> S3Listing:
        if self._listing is None:
            # Imported here because reading needs no botocore.
            from tidelog_core.objects.s3_listing import S3Listing

            self._listing = S3Listing(
                self._bucket,
                endpoint=self._endpoint,
                region=self._region,
                read_timeout_s=self._read_timeout_s,
                refusals=self._session.refusals,
            )
        return self._listing

    async def delete(self, keys: Sequence[str]) -> None:
        """Remove the objects. A missing key is no error."""
        for key in keys:
            check_key(key)
        for some in batched(keys, DELETE_KEYS_MAX):
            await self._delete([self._prefix + key for key in some])

    async def close(self) -> None:
        """Close the connection of listings; obstore keeps only idle ones."""
        if self._listing is not None:
            await self._listing.close()

    async def _delete(self, paths: Sequence[str]) -> None:
        async def delete() -> None:
            await tracked(obstore.delete_async(self._session.clients.reading, paths))

        try:
            await self._session.request("delete", delete)
        except FileNotFoundError as error:
            self._session.note_failure(error, "delete")
        except BaseError as error:
            self._session.note_failure(error, "delete")
            # Some may be deleted already. The caller repeats; deleting twice is harmless.
            raise StoreUnavailable(f"delete failed: {summary(error)}") from error

    async def _read(self, key: str, read: Callable[[], Awaitable[T]]) -> T:
        try:
            return await self._session.request("read", read)
        except FileNotFoundError as error:
            if "NoSuchBucket" not in str(error):
                raise ObjectNotFound(key) from None
            self._session.note_failure(error, "read")
            raise StoreUnavailable(
                f"the bucket of {key!r} is not there: {summary(error)}"
            ) from error
        except BaseError as error:
            self._session.note_failure(error, "read")
            raise StoreUnavailable(f"object {key!r} cannot be read: {summary(error)}") from error

    async def _put_in_parts(self, key: str, data: bytes | Path, kms_key_id: str) -> None:
        if await self._exists(key):
            raise ObjectExists(key)  # Saves the upload. The copy of the parts is decisive.
        await self._uploads.put_in_parts(key, data, kms_key_id=kms_key_id)

    async def _exists(self, key: str) -> bool:
        try:
            await self.head(key)
        except ObjectNotFound:
            return False
        return True

    def _meta(self, found: obstore.ObjectMeta) -> ObjectMeta:
        return ObjectMeta(
            key=found["path"].removeprefix(self._prefix),
            size_bytes=found["size"],
            modified_ms=int(found["last_modified"].timestamp() * 1000),
        )


def _map(path: Path) -> bytes | mmap.mmap:
    with path.open("rb") as file:
        size_bytes = os.fstat(file.fileno()).st_size
        if size_bytes == 0:
            return b""
        return mmap.mmap(file.fileno(), size_bytes, access=mmap.ACCESS_READ)
