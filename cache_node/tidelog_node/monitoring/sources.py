"""The parts of a node that have metrics. A part that fails hides no other."""

from __future__ import annotations

import logging

from tidelog_node.monitoring.scrape import Scrape, Source

logger = logging.getLogger(__name__)


class Sources:
    """Reads the parts one after the other. For the node's event loop."""

    def __init__(self) -> None:
        self._sources: list[Source] = []
        self._failing: set[int] = set()  # places of sources whose last reading failed

    def add(self, source: Source) -> None:
        """Read this source too from now on."""
        self._sources.append(source)

    async def read(self) -> Scrape:
        """Return the series of all that can be read, in turns of the loop."""
        scrape = Scrape()
        for place, source in enumerate(self._sources):
            await self._read(place, source, scrape)
        scrape.add("tidelog_scrape_failed_sources", len(self._failing))
        return scrape

    async def _read(self, place: int, source: Source, scrape: Scrape) -> None:
        """Read one source. One that fails is logged until it works again."""
        try:
            await source(scrape)
        except Exception:
            if place not in self._failing:
                logger.exception("metrics cannot be read, their series are left out")
            self._failing.add(place)
        else:
            self._failing.discard(place)
