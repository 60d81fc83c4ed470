"""Throttles clients that have used more than their quotas allow.

Amounts are counted as in Kafka: the whole Produce request, when it has come; the Fetch answer, when
it is ready; the time of the loop that any request takes. A client over its quota gets an answer
that says how long it must wait (``RequestContext.throttle_ms``), and its connection is muted for
that time: nothing of it is read, since not all clients wait by themselves. Answers are sent
immediately. A Fetch answer over the quota has no records, and they are not counted.

A client that proved to be a node of the cluster has no limits. Quotas are those of the newest
image. Without any, one comparison is made for each request.

Source: KIP-13, KIP-124, KIP-219, KIP-599; Kafka's ``ClientQuotaManager``, ``KafkaApis``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from tidelog_core.config import NodeConfig
from tidelog_core.metadata.image.cluster_image import ClusterImage
from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_core.quotas.client_quotas import ClientQuotas
from tidelog_core.quotas.token_bucket import TokenBucket
from tidelog_core.quotas.windowed_rate import WindowedRate

from tidelog_node.counters import NodeCounters
from tidelog_node.requests.routes import RequestContext
from tidelog_node.requests.session import NO_NODE, Session
from tidelog_node.throttling.client_limits import ClientLimits, SetQuota, whole_quota
from tidelog_node.throttling.debt import STEP_SECONDS_MAX, Debt
from tidelog_node.throttling.meters import Meters
from tidelog_node.throttling.mutation_quota import MutationQuota
from tidelog_node.throttling.quota_shares import QuotaShares
from tidelog_node.throttling.rate_limit import RateLimit
from tidelog_node.throttling.request_timer import RequestTimer

NO_LIMIT_BYTES: Final = 2_147_483_647  # the largest ``max_bytes`` of a Fetch
THROTTLE_MS_MAX = 2**31 - 1  # of an answer's field
_NS_PER_MS: Final = 1_000_000


class Throttle:
    """The quotas of a node's clients. For its event loop."""

    def __init__(
        self,
        view: ClusterView,
        config: NodeConfig,
        *,
        clock_ns: Callable[[], int],
        counters: NodeCounters | None = None,
    ) -> None:
        """``clock_ns`` is a clock that does not go back."""
        self.is_active = False  # whether there are quotas
        self._clock_ns = clock_ns
        self._counters = counters or NodeCounters()
        self._quotas: ClientQuotas = view.image.quotas.quotas
        self._window_ms = config.quota_window_size_seconds * 1000
        self._full_windows_seconds = (
            config.quota_window_num - 1
        ) * config.quota_window_size_seconds
        self._throttle_ms_max = min(config.quota_throttle_max_ms, THROTTLE_MS_MAX)
        self._meters = Meters(
            new_rate=lambda: WindowedRate(
                window_count=config.quota_window_num, size_ms=self._window_ms
            ),
            new_bucket=lambda: TokenBucket(
                window_count=config.controller_quota_window_num,
                size_ms=config.controller_quota_window_size_seconds * 1000,
            ),
            clock_ms=self.now_ms,
        )
        self.shares: QuotaShares | None = None
        self._set_quota: SetQuota = whole_quota
        self._on_image(view.image, frozenset())

    def share(
        self, broker_id: int, *, live: Callable[[], Collection[int]], now: Callable[[], float]
    ) -> QuotaShares:
        """Make the quotas of bytes those of the cluster; return this node's parts of them.

        To be called before the first request.
        """
        active = self._meters.active = []
        shares = QuotaShares(broker_id, active, live=live, now=now)
        self.shares, self._set_quota = shares, shares.set_quota
        return shares

    def start(self, view: ClusterView) -> Callable[[], None]:
        """Follow the image. Returns the function that ends the subscription."""
        return view.subscribe(self._on_image)

    def produced(self, context: RequestContext, size_bytes: int) -> None:
        """Count a Produce request, without the field of its size."""
        limits = self._limits_of(context.session)
        if limits is None or limits.produce is None:
            return
        limit = limits.produce
        throttle_ms = limit.count(size_bytes, self._now_ms_of(context))
        if throttle_ms:
            self._wait(context, throttle_ms, limit)

    def fetch_bytes_max(self, session: Session) -> int:
        """Return the bytes above which any answer would be over the client's quota."""
        limits = self._limits_of(session)
        if limits is None or limits.fetch is None:
            return NO_LIMIT_BYTES
        return min(int(limits.fetch.rate * self._full_windows_seconds), NO_LIMIT_BYTES)

    def fetched(self, context: RequestContext, size_bytes: int) -> bool:
        """Count a Fetch answer; return whether it may be sent.

        ``size_bytes`` is without the field of its size. One that alone is over the quota may be
        sent once nothing else counts: the client could never get on otherwise.
        """
        limits = self._limits_of(context.session)
        if limits is None:
            return True
        timed_ms = self._timed_ms(context, limits)
        limit, now_ms = limits.fetch, self._now_ms_of(context)
        throttle_ms, is_alone = 0, False
        if limit is not None:
            is_alone = limit.meter.is_idle(now_ms)
            throttle_ms = limit.count(size_bytes, now_ms)
        if not throttle_ms and not timed_ms:
            return True
        may_be_sent = is_alone and not timed_ms
        if limit is not None and not may_be_sent:
            limit.take_back(size_bytes, now_ms)
        self._wait(context, throttle_ms, limit)
        self._wait(context, timed_ms)
        return may_be_sent

    def delivered(self, context: RequestContext, size_bytes: int) -> int:
        """Count an answer whose records cannot be taken back; return how long the client must wait.

        The records of a ShareFetch are acquired when they are answered.
        """
        limits = self._limits_of(context.session)
        if limits is None:
            return 0
        timed_ms = self._timed_ms(context, limits)
        limit = limits.fetch
        if limit is not None:
            self._wait(context, limit.count(size_bytes, self._now_ms_of(context)), limit)
        self._wait(context, timed_ms)
        return context.throttle_ms

    def limits(self) -> list[RateLimit]:
        """Return the limits of rates that clients have had lately."""
        return self._meters.limits()

    def now_ms(self) -> int:
        """Return the time by the clock of the rates."""
        return self._clock_ns() // _NS_PER_MS

    # -- the time of requests --

    def timer_of(self, session: Session) -> RequestTimer | None:
        """Return a timer for a request, ``None`` if its time has no limit."""
        if not self.is_active:
            return None
        limits = self._limits_of(session)
        if limits is None or limits.request is None:
            return None
        return RequestTimer(self._clock_ns)

    def timed(self, context: RequestContext) -> None:
        """Count the time of a request that is about to be answered."""
        limits = self._limits_of(context.session)
        if limits is not None:
            throttle_ms = self._timed_ms(context, limits)
            if throttle_ms:
                self._wait(context, throttle_ms)

    def _timed_ms(self, context: RequestContext, limits: ClientLimits) -> int:
        timer = context.timer
        if timer is None:
            return 0
        percents = timer.take_percents()
        if limits.request is None:
            return 0
        return min(limits.request.count(percents, timer.read_ns // _NS_PER_MS), self._window_ms)

    def _now_ms_of(self, context: RequestContext) -> int:
        """Return the time, as the request's timer has just read it if there is one."""
        timer = context.timer
        return (self._clock_ns() if timer is None else timer.read_ns) // _NS_PER_MS

    # -- partitions created and deleted --

    def mutations(self, context: RequestContext, *, is_strict: bool) -> MutationQuota:
        """Return the quota of a request that creates or deletes partitions."""
        limits = self._limits_of(context.session)
        limit = None if limits is None else limits.mutation
        return MutationQuota(limit, is_strict=is_strict, clock_ms=self.now_ms)

    def mutated(self, context: RequestContext, quota: MutationQuota) -> None:
        """Throttle the client by its quota of mutations."""
        self._wait(context, quota.throttle_ms())

    # -- inside --

    def _wait(
        self, context: RequestContext, throttle_ms: int, limit: RateLimit | None = None
    ) -> None:
        throttle_ms = min(throttle_ms, self._throttle_ms_max)
        if throttle_ms <= context.throttle_ms:
            return
        self._counters.throttled_count += not context.throttle_ms
        self._counters.throttled_ms += throttle_ms - context.throttle_ms
        if limit is None or self.shares is None:
            context.throttle_ms = throttle_ms
            context.session.mute(throttle_ms / 1000)
        else:
            # A client that waits by itself must not wait longer than this node would have it.
            debt = Debt(limit, throttle_ms, self.now_ms)
            context.throttle_ms = min(throttle_ms, int(STEP_SECONDS_MAX * 1000))
            context.session.mute(debt.step_seconds(), debt.step_seconds)

    def _limits_of(self, session: Session) -> ClientLimits | None:
        """Return the limits of a client, ``None`` if it has none for sure."""
        quotas = self._quotas
        if not self.is_active or session.node_id != NO_NODE:
            return None
        limits = session.limits
        if limits is None or limits.quotas is not quotas:
            user, client_id = session.principal.name, session.client_id or ""
            limits = session.limits = ClientLimits(
                quotas, user, client_id, self._meters, self._set_quota
            )
        return limits

    def _on_image(self, image: ClusterImage, _: frozenset[str]) -> None:
        self._quotas = image.quotas.quotas
        self.is_active = bool(self._quotas.by_entity)
