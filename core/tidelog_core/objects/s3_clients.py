"""obstore's clients of one bucket, which differ in their retries, time-outs and checksums."""

from __future__ import annotations

import os
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING

from obstore.store import S3Store

from tidelog_core.objects.s3_checksums import signed_checksum, upload_checksum

if TYPE_CHECKING:
    from obstore.store import S3Config

RETRIES_MAX = 5
BACKOFF_S_MIN = 0.1
BACKOFF_S_MAX = 5.0
CONNECT_TIMEOUT = timedelta(seconds=5)
REQUEST_TIMEOUT_S = 300.0


class S3Clients:
    """The clients for objects with one key of KMS, or with the bucket's own encryption."""

    def __init__(
        self,
        bucket: str,
        *,
        endpoint: str | None,
        region: str | None,
        read_timeout_s: float,
        kms_key_id: str = "",
    ) -> None:
        """``endpoint`` and ``region``: ``None`` for those of the environment."""
        self._bucket = bucket
        self._endpoint = endpoint
        self._region = region
        self._kms_key_id = kms_key_id
        # obstore reads the environment: the choice of a checksum must see the same.
        self._signed = signed_checksum(os.environ)
        self.reading = self._connect(RETRIES_MAX, self._signed, read_timeout_s)
        # It repeats nothing. The answer to an upload comes after all bytes are sent, so one
        # time-out covers both.
        self.putting = self._connect(0, upload_checksum(endpoint, os.environ), REQUEST_TIMEOUT_S)

    @cached_property
    def uploading_parts(self) -> S3Store:
        """The client for objects in parts, which few buckets ever get."""
        return self._connect(RETRIES_MAX, self._signed, REQUEST_TIMEOUT_S)

    @cached_property
    def copying(self) -> S3Store:
        """The client that copies objects uploaded in parts; it repeats nothing."""
        return self._connect(0, self._signed, REQUEST_TIMEOUT_S)

    def _connect(self, retries_max: int, checksum: S3Config, read_timeout_s: float) -> S3Store:
        config: S3Config = {"copy_if_not_exists": "multipart", **checksum}
        if self._kms_key_id:
            config["server_side_encryption"] = "aws:kms"
            config["sse_kms_key_id"] = self._kms_key_id
            config["sse_bucket_key_enabled"] = True
        if self._endpoint is not None:
            config["endpoint"] = self._endpoint
        if self._region is not None:
            config["region"] = self._region
        return S3Store(
            self._bucket,
            config=config,
            client_options={
                "allow_http": True,
                "connect_timeout": CONNECT_TIMEOUT,
                "timeout": timedelta(seconds=REQUEST_TIMEOUT_S),
                "read_timeout": timedelta(seconds=read_timeout_s),
            },
            retry_config={
                "max_retries": retries_max,
                "retry_timeout": timedelta(seconds=60),
                "backoff": {
                    "init_backoff": timedelta(seconds=BACKOFF_S_MIN),
                    "max_backoff": timedelta(seconds=BACKOFF_S_MAX),
                    "base": 2,
                },
            },
        )
