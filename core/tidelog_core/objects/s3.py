"""An object store in an S3 bucket, through obstore.

A write is one PUT with ``If-None-Match: *``: of several writers one wins. obstore would repeat a
PUT whose answer was lost and then report «already there» for our own object. So writes are
repeated here, where it is known whether an earlier attempt may have succeeded; «already there»
is then ``OutcomeUnknown``.

Objects above ``multipart_threshold`` are uploaded in parts to a staging key, from which S3
copies them to their own key, again only if that is absent: S3 takes a condition on the
copy, obstore none on parts. A crash leaves a staging object or unfinished parts; a
lifecycle rule on ``.staging/`` removes both.

Uploads have the checksum that ``s3_checksums`` names. Parts, and the few objects that are replaced,
have SHA-256 and are signed with their bytes wherever they go: they are rare.

An object whose topic names a key of KMS is written by clients of their own, because obstore takes
the key with its other settings. Reading needs no key, but the right to decrypt with it. S3 keeps a
data key for a time (bucket keys), so there is no call of KMS for each object.

Credentials may expire earlier than obstore expects. A request that is refused for that is
repeated with newly loaded credentials.

Callers retry refusals of S3 (wrong credentials, a policy, a missing bucket) like other failures;
``Refusals`` logs them.

This is the only place that knows obstore's exceptions.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import random
import re
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    PermissionDeniedError,
    UnauthenticatedError,
)

from tidelog_core.errors import ObjectExists, ObjectNotFound, OutcomeUnknown, StoreUnavailable
from tidelog_core.objects.key_rules import STAGING, check_key, check_range, may_start_a_key
from tidelog_core.objects.obstore_requests import noted
from tidelog_core.objects.s3_clients import BACKOFF_S_MAX, BACKOFF_S_MIN, S3Clients
from tidelog_core.objects.s3_refusals import Refusals
from tidelog_core.objects.store import ObjectMeta

if TYPE_CHECKING:
    from tidelog_core.objects.expiry import ExpiryRule
    from tidelog_core.objects.s3_listing import S3Listing

T = TypeVar("T")

REFUSED = ("AccessDenied", "incorrectly configured region")
# Answers other than 401 and 403 by which S3 refuses every request.
# Source: S3 API reference, error responses.
REFUSALS = frozenset(
    {
        "AuthorizationHeaderMalformed",
        "ExpiredToken",
        "InvalidBucketName",
        "InvalidToken",
        "NoSuchBucket",
        "PermanentRedirect",
    }
)

# Answers of 503 by which S3 asks for fewer requests: it has not carried the request out.
SLOW_DOWN = frozenset({"SlowDown", "ServiceUnavailable", "RequestLimitExceeded"})

MULTIPART_THRESHOLD_BYTES = 1 << 30  # One PUT takes at most 5 GiB. Source: S3 user guide.
PART_SIZE_BYTES = 64 << 20
PART_CONCURRENCY = 4
WRITE_ATTEMPTS_MAX = 5
READ_TIMEOUT_S = 15.0  # without a byte of an answer
WRITE_TIMEOUT_S = 20.0  # of one PUT, in addition to the time for its bytes
WRITE_BYTES_PER_SECOND_MIN = 4 << 20  # One connection reaches twenty times that.
RENEW_INTERVAL_S = 1.0
KMS_KEYS_MAX = 100  # whose clients are kept, with their connections
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
        self._part_size_bytes = part_size_bytes
        self._write_timeout_s = write_timeout_s
        self._refusals = Refusals(bucket)
        self._bucket = bucket
        self._endpoint = endpoint
        self._region = region
        self._read_timeout_s = read_timeout_s
        self._listing: S3Listing | None = None  # made by the first listing
        self._clients = self._connect()
        self._encrypting: dict[str, S3Clients] = {}  # by the id of their key of KMS
        self._connected_at = time.monotonic()

    async def put(self, key: str, data: bytes, *, kms_key_id: str = "") -> None:
        """Store ``data``, encrypted with the key of KMS if one is named.

        Raises ``ObjectExists``.
        """
        check_key(key)
        if len(data) > self._multipart_threshold:
            await self._put_in_parts(key, data, kms_key_id)
        else:
            await self._put_once(key, data, kms_key_id)

    async def put_once(self, key: str, data: bytes, *, timeout_s: float) -> None:
        """Store ``data`` with one PUT, which is not repeated; see ``OneAttemptStore``."""
        check_key(key)
        try:
            async with asyncio.timeout(timeout_s):
                await noted(
                    obstore.put_async(
                        self._clients.putting,
                        self._prefix + key,
                        data,
                        mode="create",
                        use_multipart=False,
                    )
                )
        except AlreadyExistsError:
            raise ObjectExists(key) from None
        except (BaseError, FileNotFoundError, TimeoutError) as error:
            self._note(error, "write")
            if self._renewed(error) or _is_slowed(error):
                raise StoreUnavailable(
                    f"object {key!r} was not written: {_summary(error)}"
                ) from error
            raise _write_failure(key, error) from error
        self._refusals.note_success("write")

    async def put_file(self, key: str, path: Path, *, kms_key_id: str = "") -> None:
        """Store the file's bytes, as they are at the call. The rest is as in ``put``."""
        check_key(key)
        size_bytes = (await asyncio.to_thread(path.stat)).st_size
        if size_bytes > self._multipart_threshold:
            await self._put_in_parts(key, path, kms_key_id)
        else:
            # obstore sends a mapping without copying it, and would read a path whole.
            await self._put_once(key, await asyncio.to_thread(_map, path), kms_key_id)

    async def replace(self, key: str, data: bytes) -> None:
        """Store ``data`` whether or not the key exists; readers see the old or the new."""
        check_key(key)
        for is_last in (False, True):
            try:
                await noted(
                    obstore.put_async(
                        self._clients.reading,  # Manifests are small: an answer soon follows.
                        self._prefix + key,
                        data,
                        mode="overwrite",
                        use_multipart=False,
                    )
                )
            except (BaseError, FileNotFoundError) as error:
                if is_last or not self._renewed(error):
                    self._note(error, "write")
                    raise _write_failure(key, error) from error
            else:
                self._refusals.note_success("write")
                return

    async def get(self, key: str) -> bytes:
        """Return the whole object. Raises ``ObjectNotFound``."""
        check_key(key)

        async def read() -> bytes:
            result = await noted(obstore.get_async(self._clients.reading, self._prefix + key))
            return bytes(await noted(result.bytes_async()))

        return await self._reading(key, read)

    async def get_range(self, key: str, start: int, end: int) -> bytes | memoryview:
        """Return bytes ``[start, end)``, fewer only at the end of the object."""
        check_key(key)
        check_range(start, end)
        if start == end:
            await self.head(key)
            return b""

        async def read() -> memoryview:
            found = await noted(
                obstore.get_range_async(
                    self._clients.reading, self._prefix + key, start=start, end=end
                )
            )
            return memoryview(found)  # Cold reads are large, and a copy stops the event loop.

        try:
            return await self._reading(key, read)
        except StoreUnavailable as error:
            if isinstance(error.__cause__, Exception) and _is_refusal(error.__cause__):
                raise
            # S3 refuses a range that starts at or past the end, in every form.
            if start >= (await self.head(key)).size_bytes:
                return b""
            raise

    async def head(self, key: str) -> ObjectMeta:
        """Return the object's metadata. Raises ``ObjectNotFound``."""
        check_key(key)

        async def read() -> ObjectMeta:
            found = await noted(obstore.head_async(self._clients.reading, self._prefix + key))
            return self._meta(found)

        return await self._reading(key, read)

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
        rules = await self._listed().expiry_rules()
        ours = [
            rule
            for rule in rules
            if rule.prefix.startswith(self._prefix) or self._prefix.startswith(rule.prefix)
        ]
        return [
            rule._replace(
                prefix=rule.prefix[len(self._prefix) :]
                if rule.prefix.startswith(self._prefix)
                else ""
            )
            for rule in ours
        ]

    def _listed(self) -> S3Listing:
        if self._listing is None:
            # Imported here because reading needs no botocore.
            from tidelog_core.objects.s3_listing import S3Listing

            self._listing = S3Listing(
                self._bucket,
                endpoint=self._endpoint,
                region=self._region,
                read_timeout_s=self._read_timeout_s,
                refusals=self._refusals,
            )
        return self._listing

    async def delete(self, keys: Sequence[str]) -> None:
        """Remove the objects. A missing key is no error."""
        for key in keys:
            check_key(key)
        for at in range(0, len(keys), DELETE_KEYS_MAX):
            await self._delete([self._prefix + key for key in keys[at : at + DELETE_KEYS_MAX]])

    async def close(self) -> None:
        """Close the connection of listings; obstore keeps only idle ones."""
        if self._listing is not None:
            await self._listing.close()

    async def _delete(self, paths: Sequence[str]) -> None:
        for is_last in (False, True):
            try:
                await noted(obstore.delete_async(self._clients.reading, paths))
            except FileNotFoundError as error:
                self._note(error, "delete")
                return
            except BaseError as error:
                if is_last or not self._renewed(error):
                    self._note(error, "delete")
                    # Some may be deleted already. The caller repeats; deleting twice is harmless.
                    raise StoreUnavailable(f"delete failed: {_summary(error)}") from error
            else:
                self._refusals.note_success("delete")
                return

    async def _reading(self, key: str, read: Callable[[], Awaitable[T]]) -> T:
        for is_last in (False, True):
            try:
                found = await read()
                self._refusals.note_success("read")
                return found
            except FileNotFoundError as error:
                if "NoSuchBucket" in str(error):
                    self._note(error, "read")
                    raise StoreUnavailable(
                        f"the bucket of {key!r} is not there: {_summary(error)}"
                    ) from error
                raise ObjectNotFound(key) from None
            except BaseError as error:
                if is_last or not self._renewed(error):
                    self._note(error, "read")
                    raise StoreUnavailable(
                        f"object {key!r} cannot be read: {_summary(error)}"
                    ) from error
        raise AssertionError("unreachable")

    def _note(self, error: Exception, operation: str) -> None:
        if _is_refusal(error):
            self._refusals.note_refusal(operation, _summary(error))

    def _renewed(self, error: Exception) -> bool:
        """Whether the request was refused for its credentials, which are then loaded again.

        At most once in ``RENEW_INTERVAL_S``, to protect the service that issues them.
        """
        if not _has_expired(error):
            return False
        if time.monotonic() - self._connected_at >= RENEW_INTERVAL_S:
            self._clients = self._connect()
            self._encrypting.clear()
            self._connected_at = time.monotonic()
        return True

    def _connect(self, kms_key_id: str = "") -> S3Clients:
        return S3Clients(
            self._bucket,
            endpoint=self._endpoint,
            region=self._region,
            read_timeout_s=self._read_timeout_s,
            kms_key_id=kms_key_id,
        )

    def _writers(self, kms_key_id: str) -> S3Clients:
        """Return the clients whose objects are encrypted with this key; empty: none is named."""
        if not kms_key_id:
            return self._clients
        if kms_key_id not in self._encrypting:
            if len(self._encrypting) >= KMS_KEYS_MAX:
                del self._encrypting[next(iter(self._encrypting))]
            self._encrypting[kms_key_id] = self._connect(kms_key_id)
        return self._encrypting[kms_key_id]

    async def _put_once(self, key: str, data: bytes | mmap.mmap, kms_key_id: str) -> None:
        timeout_s = self._write_timeout_s + len(data) / WRITE_BYTES_PER_SECOND_MIN

        async def put() -> None:
            async with asyncio.timeout(timeout_s):
                await noted(
                    obstore.put_async(
                        self._writers(kms_key_id).putting,
                        self._prefix + key,
                        data,
                        mode="create",
                        use_multipart=False,
                    )
                )

        await self._create(key, put)

    async def _put_in_parts(self, key: str, data: bytes | Path, kms_key_id: str) -> None:
        if await self._exists(key):
            raise ObjectExists(key)  # Saves the upload. The copy below is decisive.
        staged = f"{self._prefix}{STAGING}/{uuid.uuid4().hex}"
        try:
            try:
                await noted(
                    obstore.put_async(
                        self._writers(kms_key_id).uploading_parts,
                        staged,
                        data,
                        use_multipart=True,
                        chunk_size=self._part_size_bytes,
                        max_concurrency=PART_CONCURRENCY,
                    )
                )
            except (BaseError, FileNotFoundError) as error:
                self._renewed(error)  # The caller begins the upload again.
                self._note(error, "write")
                raise StoreUnavailable(
                    f"object {key!r} was not written: {_summary(error)}"
                ) from error
            await self._create(
                key,
                lambda: noted(
                    obstore.copy_async(
                        self._writers(kms_key_id).copying,
                        staged,
                        self._prefix + key,
                        overwrite=False,
                    )
                ),
            )
        finally:
            await _quietly(obstore.delete_async(self._clients.reading, [staged]))

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
                if self._renewed(error):
                    continue
                if _is_final(error):
                    break
                may_have_happened = may_have_happened or not _is_unsent(error)
            else:
                self._refusals.note_success("write")
                return
        assert failure is not None
        self._note(failure, "write")
        if may_have_happened:
            raise OutcomeUnknown(
                f"object {key!r} may not be written: {_summary(failure)}"
            ) from failure
        raise StoreUnavailable(f"object {key!r} was not written: {_summary(failure)}") from failure

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


_CODE = re.compile(r"<Code>([^<]*)</Code>")
_MESSAGE = re.compile(r"<Message>([^<]*)</Message>")


def _map(path: Path) -> bytes | mmap.mmap:
    with path.open("rb") as file:
        size_bytes = os.fstat(file.fileno()).st_size
        if size_bytes == 0:
            return b""
        return mmap.mmap(file.fileno(), size_bytes, access=mmap.ACCESS_READ)


async def _quietly(deletion: Awaitable[object]) -> None:
    try:
        await noted(deletion)
    except (BaseError, FileNotFoundError):
        return  # The lifecycle rule removes it.


def _write_failure(key: str, error: Exception) -> OutcomeUnknown | StoreUnavailable:
    if _is_final(error) or _is_unsent(error):
        return StoreUnavailable(f"object {key!r} was not written: {_summary(error)}")
    return OutcomeUnknown(f"object {key!r} may not be written: {_summary(error)}")


def _is_final(error: Exception) -> bool:
    """Whether S3 refused the request, so that asking again will not help."""
    return type(error) not in (obstore.exceptions.GenericError, TimeoutError) or _is_refusal(error)


def _is_refusal(error: Exception) -> bool:
    """Whether S3 will refuse until an operator changes credentials, policies or the bucket."""
    if isinstance(error, PermissionDeniedError | UnauthenticatedError):
        return True
    text = str(error)
    code = _CODE.search(text)
    # A redirect, and DeleteObjects' error of one key, have no error code.
    if code is not None and (code[1] in REFUSALS or code[1].startswith("KMS.")):
        return True  # KMS.: the object's key is disabled, is to be deleted or is not there.
    return any(said in text for said in REFUSED)


def _is_unsent(error: Exception) -> bool:
    """Whether the request never reached S3. Only obstore's debug text shows this."""
    return "kind: Connect," in str(error)


def _is_slowed(error: Exception) -> bool:
    """Whether S3 has refused the request because there are too many. Source: S3, error responses.

    An answer of 503 without S3's own code may come from a proxy, after the request was carried out.
    """
    code = _CODE.search(str(error))
    return code is not None and code[1] in SLOW_DOWN


def _has_expired(error: Exception) -> bool:
    """Whether S3 refused the session token. Only obstore's text shows this."""
    text = str(error).partition("\n")[0]
    # The answer to a HEAD has no body that could give a reason.
    return "<Code>ExpiredToken</Code>" in str(error) or (
        "performing HEAD" in text and "400 Bad Request" in text
    )


def _summary(error: Exception) -> str:
    """Return the error's first line and, of S3's own answer, code and message."""
    text = str(error)
    first = text.partition("\n")[0].partition("<?xml")[0].partition("<Error>")[0]
    said = [found[1] for found in (_CODE.search(text), _MESSAGE.search(text)) if found is not None]
    words = ": ".join([first.rstrip(": ") or type(error).__name__, *said]).split()
    return " ".join(words)
