"""Refuses objects that need a key of AWS KMS, in stores that cannot encrypt with it."""

from __future__ import annotations

from tidelog_core.errors import StoreUnavailable


def refuse_kms_key(key: str, kms_key_id: str) -> None:
    """Raise ``StoreUnavailable`` if a key is named, for stores other than S3."""
    if kms_key_id:
        refusal = StoreUnavailable(
            f"object {key!r} was not written: only S3 encrypts with keys of KMS, and its topic's "
            f"tier.kms.key.id is {kms_key_id!r}"
        )
        refusal.hint = "remove tier.kms.key.id from the topic, or use a bucket of S3"
        raise refusal
