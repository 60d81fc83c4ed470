"""Watches a process's wall clock for the tasks that remove records by age."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence

from tidelog_core.config import NodeConfig
from tidelog_core.metadata.store import ClockedStore, MetadataStore
from tidelog_core.retention.clock_rule import (
    ClockBounds,
    ClockReading,
    Judgement,
    Witness,
    first_judgement,
    judge_clock,
)

logger = logging.getLogger(__name__)

WitnessSource = Callable[[], Iterable[Witness]]
"""Returns the last known times of other clocks, without I/O."""


class ClockWatch:
    """Decides whether the wall clock may expire records. For the tasks of one event loop."""

    def __init__(
        self,
        *,
        wall_ms: Callable[[], int],
        steady_ms: Callable[[], float],
        node_config: Callable[[], NodeConfig],
        sources: Sequence[WitnessSource] = (),
        has_heard_all: Callable[[], bool] = lambda: True,
    ) -> None:
        """``has_heard_all`` returns whether every possible witness has been heard once.

        Until then, shortly after the start, nothing is removed by age and nothing is logged.
        """
        self._wall_ms = wall_ms
        self._steady_ms = steady_ms
        self._node_config = node_config
        self._sources = list(sources)
        self._has_heard_all = has_heard_all
        self._judgement = first_judgement(self._read())

    def add_source(self, source: WitnessSource) -> None:
        """Add another source of witnesses."""
        self._sources.append(source)

    def may_expire(self, *also: WitnessSource) -> bool:
        """Whether records may be removed by age now. Logs changes of the answer.

        ``also`` are used in addition to the constructor's sources.
        """
        config = self._node_config()
        bounds = ClockBounds(
            config.log_retention_clock_ahead_max_ms, config.log_retention_clock_settle_ms
        )
        witnesses = [witness for source in (*self._sources, *also) for witness in source()]
        before = self._judgement
        self._judgement = judge_clock(self._read(), witnesses, before, bounds)
        self._log_change(before)
        return self._judgement.doubt is None and self._has_heard_all()

    def _log_change(self, before: Judgement) -> None:
        doubt, doubt_before = self._judgement.doubt, before.doubt
        if doubt is not None and (doubt_before is None or doubt.ahead_of != doubt_before.ahead_of):
            logger.warning(
                "clock runs ahead, nothing is removed for its age until it agrees: set it right",
                extra={"ahead_ms": doubt.ahead_ms, "ahead_of": doubt.ahead_of},
            )
        elif doubt is None and doubt_before is not None:
            logger.info("clock agrees again, expired records are removed")

    def _read(self) -> ClockReading:
        return ClockReading(self._wall_ms(), self._steady_ms())


def store_witness(store: MetadataStore) -> WitnessSource:
    """Return a source of the metadata store's clock, ``None`` if it has no clock of its own."""
    clocked = store if isinstance(store, ClockedStore) else None  # The check takes 20 µs.

    def witnesses() -> Iterable[Witness]:
        heard = None if clocked is None else clocked.heard_time
        if heard is not None:
            name = "the metadata store's clock"
            yield Witness(name, heard.wall_ms, heard.steady_ms, is_independent=True)

    return witnesses
