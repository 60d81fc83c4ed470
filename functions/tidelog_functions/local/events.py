"""Makes the events that AWS would send, on one machine. No I/O."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import uuid4

Event = dict[str, object]


def object_created(bucket: str, key: str, *, now_ms: int) -> Event:
    """Return EventBridge's event for an object stored in S3."""
    detail: Event = {
        "version": "0",
        "bucket": {"name": bucket},
        "object": {"key": key},
        "reason": "PutObject",
    }
    resource = f"arn:aws:s3:::{bucket}"
    return _event("aws.s3", "Object Created", resource, detail, now_ms=now_ms)


def scheduled(rule: str, *, now_ms: int) -> Event:
    """Return the event of an EventBridge rule with a schedule."""
    resource = f"arn:aws:events:local:000000000000:rule/{rule}"
    return _event("aws.events", "Scheduled Event", resource, {}, now_ms=now_ms)


def _event(
    source: str, detail_type: str, resource: str, detail: dict[str, object], *, now_ms: int
) -> Event:
    at = datetime.fromtimestamp(now_ms // 1000, UTC)
    return {
        "version": "0",
        "id": str(uuid4()),
        "detail-type": detail_type,
        "source": source,
        "account": "000000000000",
        "time": at.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "region": "local",
        "resources": [resource],
        "detail": detail,
    }
