"""What is read to be kept."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tidelog_core.objects.folder import FolderObjectStore
from tidelog_core.objects.memory import MemoryObjectStore
from tidelog_node.diskless.recovery.range_reader import range_reader
from tidelog_node.tier.lent_memory import LentMemory
from tidelog_node.tier.lent_ranges import FolderLender

from tests.support.store_lender import StoreLender


async def test_what_is_read_outlives_the_loan() -> None:
    store = MemoryObjectStore()
    await store.put("c/wal/1", b"0123456789")
    read = range_reader(StoreLender(store))
    assert await read("c/wal/1", 2, 5) == b"234"
    assert await read("c/wal/1", 8, 50) == b"89"


async def test_what_has_memory_of_its_own_is_not_copied(tmp_path: Path) -> None:
    store = FolderObjectStore(tmp_path)
    await store.put("c/wal/1", b"0123456789")
    memory = LentMemory(1 << 16, is_shared=False)
    with ThreadPoolExecutor(1) as executor:
        read = range_reader(FolderLender(tmp_path, memory, executor, store=store))
        assert isinstance(await read("c/wal/1", 2, 5), bytes)
        loan = memory.lend(memory.size_bytes)
        assert loan is not None
        found = await read("c/wal/1", 2, 5)
        assert isinstance(found, memoryview)
        assert found == b"234"
        loan.give_back()
    await store.close()
