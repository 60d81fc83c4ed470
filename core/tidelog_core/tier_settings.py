"""Parses the settings of the tier."""

from __future__ import annotations

import re

_KMS_KEY_ID = re.compile(r"(|[A-Za-z0-9][A-Za-z0-9:_-]*(/[A-Za-z0-9:_-]+)*)", re.ASCII)
_KMS_KEY_ID_LENGTH_MAX = 2048  # of KMS


def parse_kms_key_id(text: str) -> str:
    """Return a key's id, alias or ARN, as KMS writes them; empty for none. Raises ``ValueError``.

    Whether there is such a key is known to KMS alone.
    """
    if len(text) > _KMS_KEY_ID_LENGTH_MAX or _KMS_KEY_ID.fullmatch(text) is None:
        raise ValueError("must be the id, alias/name or ARN of a key of AWS KMS, or empty")
    return text
