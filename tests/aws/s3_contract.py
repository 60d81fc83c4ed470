"""The object-store contract as any S3 server keeps it."""

from __future__ import annotations

from contextlib import closing

import boto3

from tests.contracts.object_store import ObjectStoreContract

BUCKET = "tidelog-objects"


class S3Contract(ObjectStoreContract):
    """Where others may give an object any name at all."""

    endpoint: str
    prefix: str
    foreign_keys = (
        *ObjectStoreContract.foreign_keys,
        "t/",
        "t/0/",
        "t//0/a.log",
        "t/0//",
        "t/0/./a.log",
        "t/0/../0/a.log",
        "//",
        "/t/0/a.log",
        "../a",
        "t/0/a\n",
    )

    def put_foreign(self, key: str) -> None:
        s3 = boto3.client("s3", endpoint_url=self.endpoint, region_name="us-east-1")
        with closing(s3):
            s3.put_object(Bucket=BUCKET, Key=f"{self.prefix}/{key}", Body=b"?")
