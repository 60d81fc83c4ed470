"""Remembers the schemas that took too much to check, so that no later batch pays again.

By the host that sent the batch: one host's strange values do not have a schema refused to others.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable

from tidelog_node.inspection.schema_messages import TooCostly

REFUSED_SECONDS = 300.0
HOSTS_MAX = 1_000
OF_HOST_MAX = 8  # beyond it no batch of the host is checked until the oldest is forgotten

_Refused = OrderedDict[int, tuple[float, TooCostly]]  # by id, until when, the oldest first


class CostlySchemas:
    """The schemas of each host, for ``REFUSED_SECONDS``."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """``clock`` counts seconds."""
        self._clock = clock
        self._of_host: OrderedDict[str, _Refused] = OrderedDict()

    def note(self, host: str, costly: TooCostly) -> None:
        """Refuse the schema in batches of the host from now on."""
        known = self._of_host.setdefault(host, OrderedDict())
        known.pop(costly.schema_id, None)
        known[costly.schema_id] = self._clock() + REFUSED_SECONDS, costly
        while len(known) > OF_HOST_MAX:
            known.popitem(last=False)
        self._of_host.move_to_end(host)
        if len(self._of_host) > HOSTS_MAX:
            self._of_host.popitem(last=False)

    def any_of(self, host: str, schema_ids: Iterable[int]) -> TooCostly | None:
        """Return one of the schemas that is refused to the host."""
        known = self._live(host)
        return next((known[one][1] for one in schema_ids if one in known), None)

    def has_too_many(self, host: str) -> bool:
        """Whether the host must wait, for any schema that it uses."""
        return len(self._live(host)) >= OF_HOST_MAX

    def _live(self, host: str) -> _Refused:
        known = self._of_host.get(host)
        if known is None:
            return OrderedDict()
        now = self._clock()
        while known and next(iter(known.values()))[0] <= now:
            known.popitem(last=False)
        if not known:
            del self._of_host[host]
        return known
