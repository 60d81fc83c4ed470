"""Writes checkpoints of the registry's journal, and removes older ones and old entries.

Theory of operation. One task of a process writes them, one after the other, beside the answers to
clients; what is long is done in turns. A checkpoint takes these steps:

    read     the newest whole checkpoint, and the entries behind it
    mend     entries that were lost are written again from the metadata store
    put      the new checkpoint, which is read back
    remove   all checkpoints but the new one and the one it was made from, and old entries

So there are two whole checkpoints after the first removal, and all entries behind the older one.
If a process ends between two steps, the next checkpoint does what is left.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tidelog_core.errors import CorruptObject, ObjectExists, SchemaJournalDamaged, TidelogError
from tidelog_core.objects.store import ObjectStore
from tidelog_core.schema_registry.journal.journal_reading import FoundJournal, read_journal
from tidelog_core.schema_registry.journal.journal_repair import JournalRepair
from tidelog_core.tier.keys import SchemaObject, schema_key
from tidelog_core.turns import Turn, in_turns

logger = logging.getLogger(__name__)

KEPT = 1_024  # entries before a checkpoint that are not removed
DAMAGED = "object of the schema journal is damaged or missing"


@dataclass(slots=True)
class JournalHealth:
    """What a process has found wrong with the journal."""

    damaged_object_count: int = 0
    failed_checkpoint_count: int = 0


class JournalCheckpoints:
    """Writes the checkpoints of one process. For the tasks of one event loop."""

    def __init__(self, objects: ObjectStore, cluster_id: str, repair: JournalRepair) -> None:
        self._objects = objects
        self._cluster_id = cluster_id
        self._repair = repair
        self._task: asyncio.Task[None] | None = None
        self._wanted = 0  # the number of the entry behind which there is to be one
        self.health = JournalHealth()

    def request(self, number: int) -> None:
        """Have a checkpoint behind the entry. Returns at once."""
        self._wanted = max(self._wanted, number)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="schema checkpoint")

    async def settled(self) -> None:
        """Return once all checkpoints are written that were requested, or have failed."""
        if self._task is not None:
            await asyncio.wait([self._task])

    async def close(self) -> None:
        """End the current work; the next checkpoint does the rest."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        number = 0
        while number < self._wanted:
            number = self._wanted
            try:
                await self._write(number)
            except TidelogError as error:  # A later one makes up for it.
                self.health.failed_checkpoint_count += 1
                extra = {"reason": str(error), "hint": error.hint}
                logger.warning("checkpoint of the schema journal failed", extra=extra)
            except Exception:  # The task's owner waits for its end only.
                self.health.failed_checkpoint_count += 1
                logger.exception("checkpoint of the schema journal failed unexpectedly")

    async def _write(self, number: int) -> None:
        """Write a checkpoint behind the entry, or behind a later one. Raises the stores' errors.

        Raises ``SchemaJournalDamaged`` if entries are lost, and ``CorruptObject`` if the new one is
        not what was written.
        """
        found = await read_journal(self._objects, self._cluster_id, up_to=number)
        for key, problem in found.problems:
            logger.warning(DAMAGED, extra={"key": key, "reason": problem})
        self.health.damaged_object_count += len(found.problems)
        if found.lost or found.orphaned_texts:
            number = (await self._repair.repair(found)).sequence
            found = await read_journal(self._objects, self._cluster_id, up_to=number)
        if found.lost:
            raise SchemaJournalDamaged(schema_key(self._cluster_id, found.lost[0]))
        data = await in_turns(found.state.encoding(), Turn())
        key = schema_key(self._cluster_id, number, SchemaObject.CHECKPOINT)
        await self._put(key, data)
        if await self._objects.get(key) != data:
            raise CorruptObject(key, "it is not what was written")
        await self._objects.delete(self._obsolete(found, number))

    async def _put(self, key: str, data: bytes) -> None:
        """Put the object from a file: a node's worker reads that, and the loop copies nothing."""
        with tempfile.TemporaryDirectory(prefix="tidelog-") as folder:
            path = Path(folder) / "checkpoint"
            await asyncio.to_thread(path.write_bytes, data)
            try:
                await self._objects.put_file(key, path)
            except ObjectExists:  # An attempt before this one has put it.
                await self._objects.replace(key, data)

    def _obsolete(self, found: FoundJournal, number: int) -> list[str]:
        """Return the keys of the objects that no reader needs behind this checkpoint."""
        homes = set(found.state.texts.values())
        oldest = min(found.checkpoint, number - KEPT)
        numbers = found.listing.numbers
        gone = {
            SchemaObject.CHECKPOINT: [
                one
                for one in numbers[SchemaObject.CHECKPOINT]
                if one < number and one != found.checkpoint
            ],
            SchemaObject.VOID: [one for one in numbers[SchemaObject.VOID] if one <= oldest],
            SchemaObject.ENTRY: [
                one for one in numbers[SchemaObject.ENTRY] if one <= oldest and one not in homes
            ],
        }
        return [
            schema_key(self._cluster_id, one, kind) for kind, some in gone.items() for one in some
        ]
