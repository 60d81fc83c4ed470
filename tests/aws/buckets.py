"""Buckets of the stand-ins for S3, whose servers are shared by a whole session of tests."""

from __future__ import annotations

import boto3

REGION = "us-east-1"


def make_bucket(endpoint: str, bucket: str) -> None:
    """Make the bucket unless it is there."""
    s3 = boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name=REGION,
        # No stand-in looks at them, but boto3 sends no request without.
        aws_access_key_id="test",
        aws_secret_access_key="test",
    )
    try:
        if bucket not in [found["Name"] for found in s3.list_buckets()["Buckets"]]:
            s3.create_bucket(Bucket=bucket)
    finally:
        s3.close()
