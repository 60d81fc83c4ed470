"""Selects the checksum of uploads to S3, and whether the signature covers the bytes.

The store compares a checksum with the bytes before it keeps them, and a bucket with Object Lock
refuses uploads without one. SHA-256 costs half a second of a processor per GB, CRC-64/NVME a
hundredth of that.

- To S3 itself, over TLS: CRC-64/NVME, which S3 knows in all regions. The signature covers the
  checksum, and not the bytes: TLS protects those. AWS's own SDKs do the same.
- To all other endpoints: SHA-256, and it is signed. Without TLS nothing else protects the bytes,
  and a store that does not know CRC-64/NVME would check nothing.

An operator knows more of the own store: obstore reads ``AWS_CHECKSUM_ALGORITHM`` and
``AWS_UNSIGNED_PAYLOAD`` from the environment, and a value that is set there is kept.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from obstore.store import S3Config

# The variables by which obstore is sent to another endpoint than S3's own.
ENDPOINT_VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
CHECKSUM_VARIABLE = "AWS_CHECKSUM_ALGORITHM"
UNSIGNED_VARIABLE = "AWS_UNSIGNED_PAYLOAD"
# S3's own hosts, also those in a VPC. Load balancers and other services have names in these
# domains, too, and any store may be behind them.
_S3_HOST = re.compile(r"(?:.+\.)?s3(?:express)?(?:-[^.]+)?\.(?:.+\.)?amazonaws\.com(?:\.cn)?")


def signed_checksum(environment: Mapping[str, str]) -> S3Config:
    """Return the settings of a client whose uploads are signed with their bytes."""
    return {} if CHECKSUM_VARIABLE in environment else {"checksum_algorithm": "sha256"}


def upload_checksum(endpoint: str | None, environment: Mapping[str, str]) -> S3Config:
    """Return the settings of a client that uploads much, to the endpoint or the environment's."""
    endpoints = [endpoint, *(environment.get(name) for name in ENDPOINT_VARIABLES)]
    if not all(_is_s3_over_tls(url) for url in endpoints if url):
        return signed_checksum(environment)
    settings: S3Config = {}
    if CHECKSUM_VARIABLE not in environment:
        settings["checksum_algorithm"] = "crc64nvme"
    if UNSIGNED_VARIABLE not in environment:
        settings["unsigned_payload"] = True
    return settings


def _is_s3_over_tls(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme == "https" and _S3_HOST.fullmatch(parts.hostname or "") is not None
