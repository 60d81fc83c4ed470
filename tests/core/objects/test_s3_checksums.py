"""Uploads to S3 itself have a cheap checksum; all others are signed with their bytes."""

from __future__ import annotations

import pytest
from tidelog_core.objects.s3_checksums import (
    CHECKSUM_VARIABLE,
    ENDPOINT_VARIABLES,
    UNSIGNED_VARIABLE,
    signed_checksum,
    upload_checksum,
)

CHEAP = {"checksum_algorithm": "crc64nvme", "unsigned_payload": True}
SIGNED = {"checksum_algorithm": "sha256"}
VPC = "https://bucket.vpce-1a2b.s3.eu-central-1.vpce.amazonaws.com"


@pytest.mark.parametrize(
    "endpoint",
    [
        None,
        "https://s3.eu-central-1.amazonaws.com",
        "https://s3.dualstack.us-east-1.amazonaws.com/",
        "https://s3.cn-north-1.amazonaws.com.cn",
        "https://s3.amazonaws.com",
        "https://s3-fips.us-gov-west-1.amazonaws.com",
        "https://s3-accelerate.dualstack.amazonaws.com",
        "https://s3express-use1-az4.us-east-1.amazonaws.com",
        "https://point-123456789012.s3-accesspoint.eu-west-1.amazonaws.com",
        VPC,
    ],
)
def test_uploads_to_s3_itself_have_crc64_and_tls_protects_their_bytes(endpoint: str | None) -> None:
    assert upload_checksum(endpoint, {}) == CHEAP
    assert upload_checksum(None, {"AWS_ENDPOINT_URL": endpoint or ""}) == CHEAP


@pytest.mark.parametrize(
    "endpoint",
    [
        "http://s3.eu-central-1.amazonaws.com",  # nothing else would protect the bytes
        "http://127.0.0.1:4566",
        "https://minio.example.com",  # it may not know CRC-64/NVME
        "https://amazonaws.com.example.com",
        "https://xamazonaws.com",
        "https://s3.xamazonaws.com",
        "https://minio-1a2b.elb.eu-central-1.amazonaws.com",  # any store may be behind it
        "https://1a2b.execute-api.eu-central-1.amazonaws.com",
        "https://ec2-192-0-2-1.compute-1.amazonaws.com",
        "no URL",
    ],
)
def test_uploads_to_all_others_are_signed_with_their_bytes(endpoint: str) -> None:
    assert upload_checksum(endpoint, {}) == SIGNED
    for name in ENDPOINT_VARIABLES:
        assert upload_checksum(None, {name: endpoint}) == SIGNED
        # Which of them obstore prefers does not matter.
        assert upload_checksum(VPC, {name: endpoint}) == SIGNED


def test_the_environment_has_priority() -> None:
    named = {CHECKSUM_VARIABLE: "sha256"}
    assert upload_checksum(None, named) == {"unsigned_payload": True}
    assert upload_checksum("http://127.0.0.1:4566", named) == signed_checksum(named) == {}
    assert upload_checksum(None, {UNSIGNED_VARIABLE: "false"}) == {
        "checksum_algorithm": "crc64nvme"
    }
    assert signed_checksum({UNSIGNED_VARIABLE: "true"}) == SIGNED
