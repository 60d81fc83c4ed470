"""Says in which zone the client of a connection is, and remembers it."""

from __future__ import annotations

from collections.abc import Mapping

from tidelog_core.metadata.records import Broker
from tidelog_core.setting_values.client_zones import ClientZones

from tidelog_node.node_context import NodeContext
from tidelog_node.requests.session import Session

CLIENTS_MAX = 10_000  # whose zones are kept
CLIENT_ID_BYTES_MAX = 1_000  # of one that is kept: clients choose their ids


class SessionZones:
    """The zones of clients, as racks of brokers. For the node's event loop."""

    def __init__(self, node: NodeContext) -> None:
        config = node.static_config
        self._node = node
        self._zones = ClientZones.of(config.client_az_listener_map, config.client_az_cidr_map)
        self._brokers: Mapping[int, Broker] = {}
        self._racks: frozenset[str] = frozenset()
        # By client id, listener and address. Forgotten when the racks change.
        self._known: dict[tuple[bytes, str, str], str | None] = {}

    def of(self, session: Session) -> str | None:
        """Return the zone of a client that named none in its request, ``None`` if unknown."""
        brokers = self._node.view.image.brokers
        if brokers is not self._brokers:
            self._note_brokers(brokers)
        key = (session.client_id_bytes, session.listener, session.client_host)
        if key in self._known:
            return self._known[key]
        zone = self._zones.zone_of(
            session.client_id,
            None,
            session.client_host,
            listener=session.listener,
            racks=self._racks,
        )
        if len(session.client_id_bytes) <= CLIENT_ID_BYTES_MAX:
            if len(self._known) >= CLIENTS_MAX:
                self._known.clear()
            self._known[key] = zone
        return zone

    def _note_brokers(self, brokers: Mapping[int, Broker]) -> None:
        racks = frozenset(broker.rack for broker in brokers.values() if broker.rack)
        self._brokers = brokers
        if racks != self._racks:
            self._racks = racks
            self._known.clear()
