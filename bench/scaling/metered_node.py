"""A node that counts what it takes of its metadata store: ``metered_node.py <counts> <arguments>``.

It is ``python -m tidelog_node`` with ``bench.day.meter`` around the stores that it opens; the
units so far are in the file ``<counts>`` all the time. Run as a file, so that the packages
of any checkout can be put before it: it needs nothing of this package.
"""

from __future__ import annotations

import mmap
import struct
import sys
from dataclasses import dataclass

from tidelog_core.metadata import location
from tidelog_core.metadata.store import MetadataStore

from bench.day.meter import MeteredStore, Usage

COUNTS = struct.Struct("<qq")  # read units, write units


@dataclass(slots=True)
class SharedUsage(Usage):
    """Usage that another process can read while it grows."""

    shared: mmap.mmap | None = None
    reads: int = 0
    writes: int = 0

    def count_read(self, collection: str, amount: int) -> None:
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


def main() -> int:
    """Run the node; return its exit status."""
    path = sys.argv.pop(1)
    with open(path, "w+b") as file:  # noqa: PTH123 — mmap wants a descriptor
        file.write(bytes(COUNTS.size))
        file.flush()
        usage = SharedUsage(shared=mmap.mmap(file.fileno(), COUNTS.size))
    opened = location.open_metadata_store

    def open_metered(url: str) -> MetadataStore:
        store = MeteredStore(opened(url))
        store.usage = usage
        return store

    # The node's wiring takes it from here when it is imported, which is after this.
    location.open_metadata_store = open_metered
    from tidelog_node.__main__ import main as run_node

    return run_node()


if __name__ == "__main__":
    sys.exit(main())
