"""One observer's findings about the ports of brokers that lead diskless partitions.

The kernel closes a process's connections in the moment in which it dies, and refuses new ones from
then on. So refusals say that a process has ended, unless the cause is elsewhere:

- *The process may not listen yet.* Refusals of one that was never reached count for nothing by
  themselves.
- *A filter between the two, or a proxy that has ended.* Such a guess is wrong once for each
  process: a renewal that was written after the first refusal shows that the process lives behind a
  closed port, and so does the port if it takes connections again before another process has
  registered. From then on its refusals count for nothing by themselves.
- *A filter in front of the observer*, which refuses whatever it dials. So another broker must take
  a new connection before the last two refusals: a **witness**, which shows that the observer's own
  way out is open. A connection that is idle since before the refusals shows nothing. Where no other
  broker is alive there is no witness, and none is needed.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

REFUSALS_MIN = 3  # before they show by themselves that a process has ended
WITNESSED_MIN = 2  # of these, after another port has taken a connection


@dataclass(slots=True)
class Refusal:
    """Connections to a broker's port that were refused, one after the other."""

    since_ms: float
    count: int = 0
    witnessed_count: int = 0  # of those after another port has taken a connection

    @property
    def is_witnessed(self) -> bool:
        """Whether the observer was not cut off. One is not enough: a filter may just be going."""
        return self.witnessed_count >= WITNESSED_MIN


class PeerPorts:
    """The state of each port, by broker. The caller has the clock."""

    def __init__(self) -> None:
        self._refused: dict[int, Refusal] = {}  # while the port refuses connections
        self._lost: dict[int, float] = {}  # since when a connection has ended, until the next one
        self._reached: set[int] = set()  # there was a connection to the registered process
        self._opened: dict[int, float] = {}  # when the port last took a connection
        self._refuted: set[int] = set()  # the registered process has lived behind a closed port

    def refusal(self, broker_id: int) -> Refusal | None:
        """Return the refusals of the port since the last connection, ``None`` if it has not."""
        return self._refused.get(broker_id)

    def refusing(self) -> Collection[int]:
        """Return the brokers whose ports refuse connections."""
        return self._refused.keys()

    def out_of_reach_ms(self, broker_id: int) -> float | None:
        """Return since when the port refuses or its connections end, ``None`` if neither."""
        refusal = self._refused.get(broker_id)
        return self._lost.get(broker_id) if refusal is None else refusal.since_ms

    def shows_end(self, broker_id: int) -> bool:
        """Whether refusals of the broker's port can show by themselves that its process ended."""
        return broker_id in self._reached and broker_id not in self._refuted

    def is_refuted(self, broker_id: int) -> bool:
        """Whether the registered process has lived behind a closed port."""
        return broker_id in self._refuted

    def refute(self, broker_id: int) -> None:
        """Note that the process lives although its port has refused connections."""
        self._refuted.add(broker_id)

    def note_lost(self, broker_id: int, since_ms: float) -> None:
        """Note that connections to the broker end since then."""
        self._lost.setdefault(broker_id, since_ms)

    def note_refused(self, broker_id: int, now_ms: float) -> bool:
        """Note that the port has refused a connection; return whether it did not before."""
        refusal = self._refused.setdefault(broker_id, Refusal(now_ms))
        refusal.count += 1
        refusal.witnessed_count += any(
            at_ms >= refusal.since_ms for b, at_ms in self._opened.items() if b != broker_id
        )
        return refusal.count == 1

    def note_reached(self, broker_id: int, now_ms: float) -> None:
        """Note a new connection to the broker's process."""
        self._reached.add(broker_id)
        self._opened[broker_id] = now_ms
        self._lost.pop(broker_id, None)
        self._refused.pop(broker_id, None)

    def note_open_way(self, broker_id: int, now_ms: float) -> None:
        """Note that something at the broker's address has taken a connection."""
        self._opened[broker_id] = now_ms

    def note_unanswered(self, broker_id: int) -> None:
        """Note that there is no new connection to the broker, for a reason that says nothing."""
        self._lost.pop(broker_id, None)

    def note_registered(self, broker_id: int) -> None:
        """Note that the broker has another process now, which may not listen yet."""
        self._refused.pop(broker_id, None)
        self._lost.pop(broker_id, None)
        self._reached.discard(broker_id)
        self._refuted.discard(broker_id)
