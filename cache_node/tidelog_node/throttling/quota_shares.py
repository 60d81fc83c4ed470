"""The nodes' parts of the quotas of a cluster (``quota.scope=cluster``).

Each limit has an owner, one of the live nodes, that all of them find by a hash. Once a second every
node reports to every other what it has used of the limits that that one owns, and gets its parts
back (``divide``). Nothing is stored: a limit is owned from its first report on.

What may happen in between, and why the parts stay within the quota and the floors:

- A node that uses nothing has the floor of its equal part, and so has one that begins to, until
  the owner has answered. A client that had to wait may go on sooner then (``Debt``).
- A live node that the owner does not hear of for ``EXPIRY_SECONDS`` may use its equal part, so
  that much is kept for it. A node that the owner does not answer for as long falls back to it.
- Nodes that see different live nodes may report to different owners, each of which divides the
  whole quota among those who report to it. That ends when their images agree, and
  ``EXPIRY_SECONDS`` later all parts are of one owner.

A state machine: ``ShareExchange`` carries its messages. For one event loop.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

from tidelog_core.quotas.quota_keys import QuotaKey
from tidelog_core.quotas.shares import FLOOR, divide

from tidelog_node.throttling.rate_limit import MeterKey, RateLimit

EXPIRY_SECONDS = 3.0
FORGET_SECONDS = EXPIRY_SECONDS + 2  # longer than a node keeps a part without an answer
HEADROOM = 1.25  # a node that has room wants so many times what it uses
REPORTED_MAX = 2_000  # limits in the reports of one second; the others have equal parts
OWNED_MAX = 20_000


class Report(NamedTuple):
    """A node's demand for a limit, and the quota that it knows."""

    key: MeterKey
    demand: float  # a second
    quota: float  # a second


class _Owned:
    """The last reports about a limit, by node, with their times and answers."""

    __slots__ = ("demands", "heard", "parts")

    def __init__(self) -> None:
        self.demands: dict[int, float] = {}
        self.heard: dict[int, float] = {}
        self.parts: dict[int, float] = {}

    def forget(self, node: int) -> None:
        del self.demands[node], self.heard[node]
        self.parts.pop(node, None)


class QuotaShares:
    """One node's parts of the quotas, and the division of those that it owns."""

    def __init__(
        self,
        broker_id: int,
        active: list[RateLimit],
        *,
        live: Callable[[], Collection[int]],
        now: Callable[[], float],
    ) -> None:
        """``active`` are the limits used since the last reports; ``now`` is in seconds."""
        self._broker_id = broker_id
        self._active = active
        self._live = live
        self._now = now
        self._reported_at = now()
        self._unanswered: dict[RateLimit, float] = {}  # and since when
        self._asked: dict[MeterKey, RateLimit] = {}  # of the last reports
        self._heard: dict[int, float] = {}  # when nodes have reported, about anything
        self._owned: dict[MeterKey, _Owned] = {}
        self._since = now()

    def set_quota(self, limit: RateLimit, quota: float) -> None:
        """Set a limit's quota. This node's part of it stays the same."""
        if limit.quota:
            limit.rate *= quota / limit.quota
        else:
            limit.rate = FLOOR * quota / self._node_count()
        limit.quota = quota

    # -- as a node that uses limits --

    def reports(self) -> dict[int, list[Report]]:
        """Return the report for each live node; most get none."""
        now = self._now()
        seconds = max(now - self._reported_at, 0.001)
        self._reported_at = now
        by_owner: dict[int, list[Report]] = {node: [] for node in self._live()}
        by_owner.setdefault(self._broker_id, [])
        active, self._active[:] = self._active[:], []
        used = [(limit.take_used(), limit) for limit in active]
        used.sort(key=lambda one: -one[0])
        self._asked = {}
        for place, (amount, limit) in enumerate(used):
            limit.is_active = False
            if limit.key[0] is QuotaKey.REQUEST_PERCENTAGE or place >= REPORTED_MAX:
                continue
            demand = limit.quota if _is_over(limit, now) else amount / seconds * HEADROOM
            if demand:
                limit.is_active = True
                self._active.append(limit)  # The next report says when it is used no longer.
                self._asked[limit.key] = limit
                self._unanswered.setdefault(limit, now)
            else:
                self._unanswered.pop(limit, None)
                limit.rate = FLOOR * limit.quota / self._node_count()
            by_owner[owner_of(limit.key, by_owner)].append(Report(limit.key, demand, limit.quota))
        return by_owner

    def accept(self, reports: Sequence[Report], parts: Sequence[float]) -> None:
        """Take the parts that an owner has answered with."""
        for report, part in zip(reports, parts, strict=True):
            limit = self._asked.get(report.key)
            if limit is not None:
                # It may have another quota by now.
                limit.rate = part * limit.quota / report.quota
                self._unanswered.pop(limit, None)

    def expire(self) -> None:
        """Fall back to equal parts where no owner has answered in time."""
        now, node_count = self._now(), self._node_count()
        for limit, since in self._unanswered.items():
            if now - since >= EXPIRY_SECONDS:
                limit.rate = limit.quota / node_count

    # -- as the owner of limits --

    def assign(self, node: int, reports: Iterable[Report]) -> list[float]:
        """Return the node's parts of the limits that it reports."""
        now, live = self._now(), self._live()
        self._heard[node] = now
        node_count = self._node_count()
        silent_count = sum(1 for one in live if self._is_silent(one, now))
        parts: list[float] = []
        for key, demand, quota in reports:
            owned = self._owned.get(key)
            if owned is None:
                if len(self._owned) >= OWNED_MAX:
                    del self._owned[next(iter(self._owned))]
                owned = self._owned[key] = _Owned()
            owned.demands[node], owned.heard[node] = demand, now
            for other, heard_at in tuple(owned.heard.items()):
                is_gone = other not in live and other != node
                if is_gone or now - heard_at >= FORGET_SECONDS or not owned.demands[other]:
                    owned.forget(other)
            if not demand:
                parts.append(0.0)
                if not owned.demands:
                    del self._owned[key]
                continue
            left = quota * (1 - silent_count / node_count)
            part = divide(left, owned.demands, node_count=node_count)[node]
            # Others have what they were answered until they report again.
            others = sum(given for other, given in owned.parts.items() if other != node)
            floor = FLOOR * quota / node_count
            owned.parts[node] = max(min(part, left - others), floor)
            parts.append(owned.parts[node])
        return parts

    # -- inside --

    def _is_silent(self, node: int, now: float) -> bool:
        """Return whether a live node may be cut off. One that has just come is not yet."""
        if node == self._broker_id:
            return False
        return now - self._heard.get(node, self._since) >= EXPIRY_SECONDS

    def _node_count(self) -> int:
        return max(len(self._live()), 1)


def _is_over(limit: RateLimit, now: float) -> bool:
    """Return whether a client wants more than the part, or has lately.

    Parts that change with each request would let less through than any of them.
    """
    now_ms = int(now * 1000)
    if limit.meter.throttle_ms(limit.rate, now_ms):
        limit.over_ms = now_ms
    return limit.over_ms is not None and now_ms - limit.over_ms < EXPIRY_SECONDS * 1000


def owner_of(key: MeterKey, nodes: Iterable[int]) -> int:
    """Return the node that owns a limit. All find the same one, and few move when one dies."""
    kind, (user, client_id) = key
    name = f"{kind.value}\0{user}\0{client_id}".encode()

    def weight(node: int) -> bytes:
        return hashlib.blake2b(name, digest_size=8, key=node.to_bytes(8, "big")).digest()

    return max(nodes, key=lambda node: (weight(node), node))
