"""The clients that ask for subscriptions and push metrics, and when each may do so next.

The rules are those of Kafka's ``ClientMetricsInstance``. A client may ask once an interval, push
once an interval, and push at once after it asked: it waits for a random part of the interval first.
The state of a client is forgotten when its connection ends, when it is silent for three
intervals, or when ``INSTANCES_MAX`` others came since; then it counts as new.
"""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from tidelog_core.errors import ErrorCode

from tidelog_node.client_metrics.subscriptions import (
    SubscribedMetrics,
    Subscriptions,
    client_attributes,
    subscription_id,
)
from tidelog_node.counters import ClientMetricsTraffic
from tidelog_node.requests.session import Session

INSTANCES_MAX = 16_384  # Kafka's
EXPIRY_MS_MIN = 60_000
EXPIRY_INTERVALS = 3
# Of a push: the client asks again at once, and must not be told to wait.
_ASKS_AGAIN = (ErrorCode.unknown_subscription_id, ErrorCode.unsupported_compression_type)
_NEVER = float("-inf")


class ClientInstance:
    """One client, with the metrics that it pushes under the current subscriptions."""

    __slots__ = (
        "_asked_ms",
        "_pushed_ms",
        "expires_ms",
        "is_terminating",
        "last_error",
        "subscription_id",
        "subscriptions",
        "wanted",
    )

    def __init__(
        self, subscriptions: Subscriptions, wanted: SubscribedMetrics, number: int
    ) -> None:
        self.subscriptions = subscriptions
        self.wanted = wanted
        self.subscription_id = number
        self.is_terminating = False  # it has announced its last push
        self.last_error = ErrorCode.none
        self.expires_ms = _NEVER
        self._asked_ms = _NEVER
        self._pushed_ms = _NEVER

    def may_ask(self, now_ms: float) -> bool:
        """Return whether the client may ask for its subscription now, and note that it did."""
        last_ms = max(self._asked_ms, self._pushed_ms)
        if now_ms - last_ms >= self.wanted.interval_ms:
            self._asked_ms = now_ms
            return True
        return self.last_error in _ASKS_AGAIN

    def may_push(self, now_ms: float) -> bool:
        """Return whether the client may push now, and note that it did."""
        is_first = self._asked_ms > self._pushed_ms
        if is_first or now_ms - self._pushed_ms >= self.wanted.interval_ms:
            self._pushed_ms = now_ms
            return True
        return False


class ClientInstances:
    """A bounded number of clients. For the node's event loop."""

    def __init__(self, now_ms: Callable[[], float], counters: ClientMetricsTraffic) -> None:
        self.now_ms = now_ms
        self._counters = counters
        self._instances: dict[UUID, ClientInstance] = {}  # the one used longest ago is the first
        self._by_session: dict[Session, UUID] = {}

    def __len__(self) -> int:
        return len(self._instances)

    def __contains__(self, instance_id: UUID) -> bool:
        return instance_id in self._instances

    def of(
        self, instance_id: UUID, session: Session, subscriptions: Subscriptions
    ) -> ClientInstance:
        """Return the client with this id, a new one if the subscriptions have changed since."""
        now_ms = self.now_ms()
        known = self._instances.pop(instance_id, None)
        if known is None or known.subscriptions is not subscriptions or known.expires_ms < now_ms:
            wanted = subscriptions.wanted_of(client_attributes(session, instance_id))
            number = subscription_id(wanted, instance_id)
            known = ClientInstance(subscriptions, wanted, number)
            self._by_session[session] = instance_id
            session.on_close(self._left)
        expiry_ms = max(EXPIRY_MS_MIN, EXPIRY_INTERVALS * known.wanted.interval_ms)
        known.expires_ms = now_ms + expiry_ms
        self._instances[instance_id] = known
        if len(self._instances) > INSTANCES_MAX:
            del self._instances[next(iter(self._instances))]
        self._counters.instance_count = len(self._instances)
        return known

    def _left(self, session: Session) -> None:
        instance_id = self._by_session.pop(session, None)
        if instance_id is not None:
            self._instances.pop(instance_id, None)
        self._counters.instance_count = len(self._instances)
