"""The work of an erasure that is only tried: it counts the key's records in the tier."""

from __future__ import annotations

import json

from tidelog_core.erasure.tier import NOTHING_FOUND, KeyInTier, find_in_tier

from tidelog_functions.admin_jobs.requests import ErasureRequest
from tidelog_functions.admin_jobs.result_rows import ROWS_MAX, fitting_rows
from tidelog_functions.admin_jobs.run import Run
from tidelog_functions.admin_jobs.topic_tiers import opened_tiers


async def count_key(run: Run, request: ErasureRequest) -> str:
    """Count the key's records from the job's position on; return the result as JSON."""
    fields = json.loads(run.job.position) if run.job.position else {}
    rows: list[list[int]] = fields.get("rows", [])
    found = KeyInTier(*fields["found"]) if fields else NOTHING_FOUND
    after: int = fields.get("after", 0)
    done: int = fields.get("done", len(rows))  # partitions

    def move_to(after: int, found: KeyInTier) -> None:
        counts = [found.segment_count, found.holding_count, found.record_count]
        position = {"rows": rows, "done": done, "after": after, "found": counts}
        run.move_to(json.dumps(position, separators=(",", ":")))

    async def searched(end_offset: int, found: KeyInTier) -> None:
        move_to(end_offset, found)
        if run.is_save_due():
            await run.save()
        run.require_time()

    async with opened_tiers(run, request.topic) as tiers:
        for tier in tiers[done:]:
            run.step(f"searching partition {tier.partition} ({done + 1} of {len(tiers)})")
            found = await find_in_tier(
                tier, request.key, before=found, after=after, on_searched=searched
            )
            row = [tier.partition, found.record_count, found.holding_count, found.segment_count]
            done += 1
            rows = _kept_rows([*rows, row], done)
            found, after = NOTHING_FOUND, 0
            await searched(after, found)
    names = ("partition", "records", "segments", "searched_segments")
    answer = [{"topic": request.topic, **dict(zip(names, row, strict=True))} for row in rows]
    shown = fitting_rows(answer, lambda row: row["records"] > 0)
    return json.dumps({"found": shown, "partition_count": done})


def _kept_rows(rows: list[list[int]], done: int) -> list[list[int]]:
    """Return the rows that a position keeps of the partitions that are done."""
    return rows if done <= ROWS_MAX else [row for row in rows if row[1]][:ROWS_MAX]
