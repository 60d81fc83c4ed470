"""The limits of one client, looked up once for a session, its client id and the stored quotas."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tidelog_core.quotas.client_quotas import ClientQuotas
from tidelog_core.quotas.quota_keys import QuotaKey
from tidelog_core.quotas.token_bucket import TokenBucket

from tidelog_node.throttling.meters import Meters
from tidelog_node.throttling.rate_limit import RateLimit

SetQuota = Callable[[RateLimit, float], None]
"""Sets the quota of a limit, and the rate that this node has of it."""


class BucketLimit(NamedTuple):
    """Tokens per second, and the bucket of all who share it."""

    bucket: TokenBucket
    rate: float


def whole_quota(limit: RateLimit, quota: float) -> None:
    """Let this node have the whole quota, without regard to other nodes."""
    limit.quota = limit.rate = quota


class ClientLimits:
    """The limits of a client, each ``None`` if there is none."""

    __slots__ = ("fetch", "mutation", "produce", "quotas", "request")

    def __init__(
        self,
        quotas: ClientQuotas,
        user: str,
        client_id: str,
        meters: Meters,
        set_quota: SetQuota,
    ) -> None:
        """``set_quota`` is for the quotas of bytes; a node has the others for itself."""

        def limit(key: QuotaKey, set_quota: SetQuota) -> RateLimit | None:
            found = quotas.limit(key, user, client_id)
            if found is None:
                return None
            shared = meters.limit(key, found.shared_by)
            if shared.quota != found.rate:
                set_quota(shared, found.rate)
            return shared

        self.quotas = quotas  # which they were looked up in
        self.produce = limit(QuotaKey.PRODUCER_BYTE_RATE, set_quota)
        self.fetch = limit(QuotaKey.CONSUMER_BYTE_RATE, set_quota)
        self.request = limit(QuotaKey.REQUEST_PERCENTAGE, whole_quota)
        self.mutation: BucketLimit | None = None
        found = quotas.limit(QuotaKey.CONTROLLER_MUTATION_RATE, user, client_id)
        if found is not None:
            bucket = meters.bucket(QuotaKey.CONTROLLER_MUTATION_RATE, found.shared_by)
            self.mutation = BucketLimit(bucket, found.rate)
