"""The parameters of a job, as its item has them: JSON. The key of an erasure is only there."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Sequence
from dataclasses import dataclass

TIMEOUT_SECONDS = 60


@dataclass(frozen=True, slots=True)
class VerificationRequest:
    """Check the tiered segments of these topics; of all if none is named."""

    topics: Sequence[str]

    def to_json(self) -> str:
        """Return it for the item."""
        return json.dumps({"topics": list(self.topics)}, separators=(",", ":"))

    @classmethod
    def parse(cls, text: str) -> VerificationRequest:
        """Return the request in the item."""
        return cls(json.loads(text)["topics"])


@dataclass(frozen=True, slots=True)
class ErasureRequest:
    """Erase a key from a topic, or only count its records."""

    topic: str
    key: bytes
    is_dry_run: bool
    timeout_seconds: int

    def to_json(self) -> str:
        """Return it for the item."""
        fields = {
            "topic": self.topic,
            "key": b64encode(self.key).decode(),
            "dry_run": self.is_dry_run,
            "timeout_seconds": self.timeout_seconds,
        }
        return json.dumps(fields, separators=(",", ":"))

    @classmethod
    def parse(cls, text: str) -> ErasureRequest:
        """Return the request in the item."""
        fields = json.loads(text)
        return cls(
            fields["topic"],
            b64decode(fields["key"]),
            fields["dry_run"],
            fields["timeout_seconds"],
        )


def without_key(request: str) -> str:
    """Return the request as it stays in the item of a job that has ended."""
    fields = json.loads(request)
    fields.pop("key", None)
    return json.dumps(fields, separators=(",", ":"))


def topics_of(request: str) -> list[str]:
    """Return the topics that a request names."""
    fields = json.loads(request)
    return [fields["topic"]] if "topic" in fields else list(fields["topics"])
