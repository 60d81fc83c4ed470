"""Limits how many connections there are, and how many a second are made.

    max.connections                  of all listeners together, and of each by its own setting
    max.connections.per.ip           of one address; more are closed at once
    max.connection.creation.rate     a second, of all listeners, and of each: accepting pauses
    connection_creation_rate         a second, of one address (a quota): the connection is held
                                     unread, and closed when the address may make one again

The listener for nodes is in none of the limits of all: clients must not keep nodes from each other.
Rates are measured as those of clients are, and a pause is one window at most.

Source: KIP-402, KIP-612; Kafka's ``ConnectionQuotas``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from tidelog_core.config import ListenerConfig, NodeConfig
from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_core.model import INT32_MAX
from tidelog_core.quotas.quota_keys import QuotaKey
from tidelog_core.quotas.windowed_rate import WindowedRate
from tidelog_core.setting_values.address_limits import parse_address_limits

from tidelog_node.throttling.meters import Meters

_CREATION = QuotaKey.CONNECTION_CREATION_RATE


class ConnectionLimits:
    """Counts the connections of a node. For its event loop."""

    def __init__(
        self,
        config: Callable[[], NodeConfig],
        view: ClusterView,
        *,
        listeners: Mapping[str, ListenerConfig],
        nodes_listener: str,
        clock_ms: Callable[[], int],
    ) -> None:
        """``listeners`` has those of clients. ``clock_ms`` is a clock that does not go back."""
        self._config = config
        self._view = view
        self._listeners = listeners
        self._nodes_listener = nodes_listener
        self._clock_ms = clock_ms
        static = config()
        self._window_ms = static.quota_window_size_seconds * 1000

        def new_rate() -> WindowedRate:
            return WindowedRate(window_count=static.quota_window_num, size_ms=self._window_ms)

        self._rate = new_rate()
        self._rates = {name: new_rate() for name in listeners}
        self._meters = Meters(new_rate=new_rate, clock_ms=clock_ms)
        self._of_address: Counter[str] = Counter()
        self._of_listener: Counter[str] = Counter()
        self._overrides_text = ""
        self._overrides: Mapping[str, int] = {}

    def has_room(self, listener: str) -> bool:
        """Return whether the listener may accept a connection."""
        if listener == self._nodes_listener:
            return True
        of_clients = self._of_listener.total() - self._of_listener[self._nodes_listener]
        return (
            of_clients < self._config().max_connections
            and self._of_listener[listener] < self._listeners[listener].max_connections
        )

    def count_connection(self, listener: str) -> int:
        """Count a connection that was accepted; return for how many ms it and others must wait."""
        if listener == self._nodes_listener:
            return 0
        now_ms = self._clock_ms()
        limits = (
            (self._rate, self._config().max_connection_creation_rate),
            (self._rates[listener], self._listeners[listener].max_connection_creation_rate),
        )
        wait_ms = 0
        for rate, limit in limits:
            if limit < INT32_MAX:
                rate.add(1, now_ms)
                wait_ms = max(wait_ms, rate.throttle_ms(limit, now_ms))
        return min(wait_ms, self._window_ms)

    def refused_ms(self, listener: str, address: str) -> int:
        """Return for how many ms a connection must be held and then closed; 0 if it may be used.

        One that is refused counts for no rate.
        """
        limit = self._view.image.quotas.quotas.connection_rate(address)
        if limit is None or listener == self._nodes_listener:
            return 0
        now_ms = self._clock_ms()
        rate = self._meters.limit(_CREATION, ("", address)).meter
        rate.add(1, now_ms)
        wait_ms = min(rate.throttle_ms(limit, now_ms), self._window_ms)
        if wait_ms:
            rate.add(-1, now_ms)
            if self._config().max_connection_creation_rate < INT32_MAX:
                self._rate.add(-1, now_ms)
            if self._listeners[listener].max_connection_creation_rate < INT32_MAX:
                self._rates[listener].add(-1, now_ms)
        return wait_ms

    def enter(self, listener: str, address: str) -> bool:
        """Count a connection until ``leave``; return false, and do not, if there are too many."""
        if listener != self._nodes_listener and self._of_address[address] >= self._limit(address):
            return False
        self._of_address[address] += 1
        self._of_listener[listener] += 1
        return True

    def leave(self, listener: str, address: str) -> None:
        """Count a connection no longer."""
        self._of_listener[listener] -= 1
        self._of_address[address] -= 1
        if not self._of_address[address]:
            del self._of_address[address]

    def _limit(self, address: str) -> int:
        config = self._config()
        if config.max_connections_per_ip_overrides != self._overrides_text:
            self._overrides_text = config.max_connections_per_ip_overrides
            self._overrides = parse_address_limits(self._overrides_text)
        return self._overrides.get(address, config.max_connections_per_ip)
