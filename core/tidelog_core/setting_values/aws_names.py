"""Parses names of things of AWS: an instance type, a key of KMS, a cluster in CloudWatch."""

from __future__ import annotations

import re

_MACHINE_TYPE = re.compile(r"[a-z0-9][a-z0-9.-]{0,39}")
_KMS_KEY_ID = re.compile(r"(|[A-Za-z0-9][A-Za-z0-9:_-]*(/[A-Za-z0-9:_-]+)*)", re.ASCII)
_KMS_KEY_ID_LENGTH_MAX = 2048  # of KMS
_CLUSTER = re.compile(r"(|[A-Za-z0-9][A-Za-z0-9._-]{0,127})", re.ASCII)


def parse_machine_type(text: str) -> str:
    """Return the instance type. Raises ``ValueError`` unless it looks like one."""
    if not _MACHINE_TYPE.fullmatch(text):
        raise ValueError("must be an instance type such as i4i.large")
    return text


def parse_kms_key_id(text: str) -> str:
    """Return a key's id, alias or ARN, as KMS writes them; empty for none. Raises ``ValueError``.

    Whether there is such a key is known to KMS alone.
    """
    if len(text) > _KMS_KEY_ID_LENGTH_MAX or _KMS_KEY_ID.fullmatch(text) is None:
        raise ValueError("must be the id, alias/name or ARN of a key of AWS KMS, or empty")
    return text


def parse_cloudwatch_cluster(text: str) -> str:
    """Return the name of a cluster as a dimension, empty for none. Raises ``ValueError``."""
    if _CLUSTER.fullmatch(text) is None:
        raise ValueError("must be up to 128 of the characters a-z A-Z 0-9 . _ -, or empty")
    return text
