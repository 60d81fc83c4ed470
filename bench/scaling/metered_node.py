"""A node that counts its units of the metadata store: ``metered_node.py <counts> <arguments>``.

It is ``python -m tidelog_node`` with ``bench.day.meter`` around the stores that it opens. The file
``<counts>`` always has the units so far. It runs as a file and imports nothing of this package, so
``PYTHONPATH`` can name the packages of any checkout.
"""

from __future__ import annotations

import mmap
import struct
import sys
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from tidelog_core.metadata import location
from tidelog_core.metadata.store import Item, ItemKey, MetadataStore
from tidelog_core.metadata.stores import dynamodb_units as units

from bench.day.meter import MeteredStore, Usage

COUNTS = struct.Struct("<dq")  # read units, write units
SAMPLE_LENGTH = 20


@dataclass(slots=True)
class SharedUsage(Usage):
    """Usage that another process can read at any time."""

    shared: mmap.mmap | None = None
    reads: float = 0.0
    writes: int = 0

    def count_read(self, collection: str, amount: float) -> None:
        """Add read units."""
        Usage.count_read(self, collection, amount)
        self.reads += amount
        self._show()

    def count_write(self, collection: str, amount: int) -> None:
        """Add write units."""
        Usage.count_write(self, collection, amount)
        self.writes += amount
        self._show()

    def _show(self) -> None:
        if self.shared is not None:
            COUNTS.pack_into(self.shared, 0, self.reads, self.writes)


class SampledStore(MeteredStore):
    """A metered store that computes the sizes of a sample of listed items.

    Computing all sizes of 100,000 items would cost the node more than reading them.
    """

    async def list(self, collection: str, **options: Any) -> list[Item]:
        """Forward; a query's size is rounded up once."""
        found = await self._store.list(collection, **options)
        sample = found[:: len(found) // SAMPLE_LENGTH + 1]
        sample_bytes = sum(map(units.item_size_bytes, sample))
        size_bytes = sample_bytes * len(found) // max(1, len(sample))
        self.usage.count_read(collection, units.read_units(size_bytes))
        return found

    async def get_many(self, ids: Collection[ItemKey]) -> dict[ItemKey, Item]:
        """Forward; items that are read together are small: a unit each."""
        found = await self._store.get_many(ids)
        for item_id in ids:
            self.usage.count_read(item_id.collection, 1)
        return found


def main() -> int:
    """Run the node; return its exit status."""
    path = sys.argv.pop(1)
    with open(path, "w+b") as file:  # noqa: PTH123 — mmap wants a descriptor
        file.write(bytes(COUNTS.size))
        file.flush()
        usage = SharedUsage(shared=mmap.mmap(file.fileno(), COUNTS.size))
    opened = location.open_metadata_store

    def open_metered(url: str) -> MetadataStore:
        store = SampledStore(opened(url))
        store.usage = usage
        return store

    # The node's wiring is imported later, and takes it from this module.
    location.open_metadata_store = open_metered
    from tidelog_node.__main__ import main as run_node

    return run_node()


if __name__ == "__main__":
    sys.exit(main())
