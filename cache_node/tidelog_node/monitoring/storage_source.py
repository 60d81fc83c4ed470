"""Metrics of the disk, of compaction and scrubbing, and of the metadata store."""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

from tidelog_core.metadata.stores.usage import StoreUsage

from tidelog_node.disk.data_disk import DataDisk, reserve_bytes
from tidelog_node.monitoring.scrape import Scrape
from tidelog_node.node_context import NodeContext

DISK_SECONDS_MAX = 2.0  # A disk that takes longer has no sizes in this scrape.
DISK_WORKS, DISK_FULL, DISK_FAILED = 0, 1, 2


class StorageSource:
    """Reads the disk's state and free space, and the usage of the node's stores."""

    def __init__(
        self,
        node: NodeContext,
        disk: DataDisk,
        *,
        data_dir: Path,
        usages: Sequence[StoreUsage],
    ) -> None:
        """``usages`` are those of every metadata store that the node has open."""
        self._node = node
        self._disk = disk
        self._data_dir = data_dir
        self._usages = usages

    async def collect(self, scrape: Scrape) -> None:
        """Add the series."""
        counters, disk = self._node.counters, self._disk
        loop = asyncio.get_running_loop()
        try:
            # On a disk that hangs all threads may wait for it.
            async with asyncio.timeout(DISK_SECONDS_MAX):
                space = await loop.run_in_executor(
                    self._node.executor, shutil.disk_usage, self._data_dir
                )
        except (OSError, TimeoutError):
            pass  # The disk has failed, as the alert says.
        else:
            reserve = reserve_bytes(self._node.config(), space.total)
            scrape.add("tidelog_storage_disk_free_bytes", space.free)
            scrape.add("tidelog_storage_disk_total_bytes", space.total)
            scrape.add("tidelog_storage_disk_reserve_bytes", reserve)
        alert = DISK_FULL if disk.is_full else DISK_WORKS
        alert = DISK_FAILED if disk.has_failed else alert
        scrape.add("tidelog_storage_disk_free_space_alert", alert)
        for name, count in (
            ("expired_offsets", counters.expired_offset_count),
            ("scrubbed_bytes", counters.scrubbed_bytes),
            ("damaged_segments", counters.damaged_segment_count),
            ("compactions", counters.compaction_count),
            ("compaction_failures", counters.compaction_failure_count),
            ("compaction_read_bytes", counters.compaction_read_bytes),
            ("compaction_written_bytes", counters.compaction_written_bytes),
        ):
            scrape.add(f"tidelog_storage_{name}_total", count)
        self._collect_store(scrape)

    def _collect_store(self, scrape: Scrape) -> None:
        requests = Counter[tuple[str, str]]()
        seconds: dict[str, float] = defaultdict(float)
        for usage in self._usages:
            requests.update(dict(usage.requests))
            for operation, spent in tuple(usage.seconds.items()):
                seconds[operation] += spent
        for (operation, outcome), count in requests.items():
            scrape.add("tidelog_metadata_store_requests_total", count, operation, outcome)
        for operation, spent in seconds.items():
            scrape.add("tidelog_metadata_store_request_seconds_total", spent, operation)
        read = sum(usage.read_units for usage in self._usages)
        written = sum(usage.write_units for usage in self._usages)
        if read or written:
            scrape.add("tidelog_metadata_store_units_total", read, "read")
            scrape.add("tidelog_metadata_store_units_total", written, "write")
