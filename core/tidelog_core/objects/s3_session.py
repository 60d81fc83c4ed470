"""A bucket's clients, and the credentials that they share.

Credentials may expire earlier than obstore expects. A request that is refused for that is
repeated with newly loaded credentials.

An object whose topic names a key of KMS is written by clients of their own, because obstore takes
the key with its other settings. Reading needs no key, but the right to decrypt with it. S3 keeps a
data key for a time (bucket keys), so there is no call of KMS for each object.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from obstore.exceptions import BaseError

from tidelog_core.objects.s3_clients import S3Clients
from tidelog_core.objects.s3_errors import has_expired, is_refusal, summary
from tidelog_core.objects.s3_refusals import Refusals

T = TypeVar("T")

RENEW_INTERVAL_S = 1.0
KMS_KEYS_MAX = 100  # whose clients are kept, with their connections


class S3Session:
    """Connects to one bucket, and notes how its requests end."""

    def __init__(
        self, bucket: str, *, endpoint: str | None, region: str | None, read_timeout_s: float
    ) -> None:
        self.refusals = Refusals(bucket)
        self._bucket = bucket
        self._endpoint = endpoint
        self._region = region
        self._read_timeout_s = read_timeout_s
        self.clients = self._connect()
        self._encrypting: dict[str, S3Clients] = {}  # by the id of their key of KMS
        self._connected_at = time.monotonic()

    def writers(self, kms_key_id: str) -> S3Clients:
        """Return the clients whose objects are encrypted with this key; empty: none is named."""
        if not kms_key_id:
            return self.clients
        if kms_key_id not in self._encrypting:
            if len(self._encrypting) >= KMS_KEYS_MAX:
                del self._encrypting[next(iter(self._encrypting))]
            self._encrypting[kms_key_id] = self._connect(kms_key_id)
        return self._encrypting[kms_key_id]

    async def request(self, operation: str, send: Callable[[], Awaitable[T]]) -> T:
        """Return the answer to a request. It is sent once more if its credentials have expired.

        A success is noted. Raises obstore's errors and ``FileNotFoundError``, which the caller
        notes.
        """
        try:
            answer = await send()
        except BaseError as error:
            if not self.renew_if_expired(error):
                raise
            answer = await send()
        self.note_success(operation)
        return answer

    def note_failure(self, error: Exception, operation: str) -> None:
        """Log the error of a request if S3 refuses such requests until an operator acts."""
        if is_refusal(error):
            self.refusals.note_refusal(operation, summary(error))

    def note_success(self, operation: str) -> None:
        """Log that S3 refuses such requests no longer, if it did."""
        self.refusals.note_success(operation)

    def renew_if_expired(self, error: Exception) -> bool:
        """Return whether the request was refused because its credentials have expired.

        They are loaded again then, at most once in ``RENEW_INTERVAL_S``, to protect the service
        that issues them.
        """
        if not has_expired(error):
            return False
        if time.monotonic() - self._connected_at >= RENEW_INTERVAL_S:
            self.clients = self._connect()
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
