"""The limits of one client, looked up once for a session, its client id and the stored quotas."""

from __future__ import annotations

from typing import NamedTuple

from tidelog_core.quotas.client_quotas import ClientQuotas
from tidelog_core.quotas.quota_keys import QuotaKey
from tidelog_core.quotas.token_bucket import TokenBucket
from tidelog_core.quotas.windowed_rate import WindowedRate

from tidelog_node.throttling.meters import Meters


class RateLimit(NamedTuple):
    """A rate per second, and what all who share it have used."""

    meter: WindowedRate
    rate: float


class BucketLimit(NamedTuple):
    """Tokens per second, and the bucket of all who share it."""

    bucket: TokenBucket
    rate: float


class ClientLimits:
    """The limits of a client, each ``None`` if there is none."""

    __slots__ = ("fetch", "mutation", "produce", "quotas", "request")

    def __init__(self, quotas: ClientQuotas, user: str, client_id: str, meters: Meters) -> None:
        def rate(key: QuotaKey) -> RateLimit | None:
            limit = quotas.limit(key, user, client_id)
            if limit is None:
                return None
            return RateLimit(meters.rate(key, limit.shared_by), limit.rate)

        self.quotas = quotas  # which they were looked up in
        self.produce = rate(QuotaKey.PRODUCER_BYTE_RATE)
        self.fetch = rate(QuotaKey.CONSUMER_BYTE_RATE)
        self.request = rate(QuotaKey.REQUEST_PERCENTAGE)
        self.mutation: BucketLimit | None = None
        limit = quotas.limit(QuotaKey.CONTROLLER_MUTATION_RATE, user, client_id)
        if limit is not None:
            bucket = meters.bucket(QuotaKey.CONTROLLER_MUTATION_RATE, limit.shared_by)
            self.mutation = BucketLimit(bucket, limit.rate)
