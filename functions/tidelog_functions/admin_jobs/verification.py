"""The work of a verification. Its position has the findings so far, of which it names a part."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from tidelog_core.errors import Interrupted
from tidelog_core.model import TopicPartition
from tidelog_core.verification.check_run import continue_check
from tidelog_core.verification.segment_check import Problem
from tidelog_core.verification.source import planned_by_metadata
from tidelog_core.verification.verification import CheckPosition, Findings, problem_row

from tidelog_functions.admin_jobs.requests import VerificationRequest
from tidelog_functions.admin_jobs.run import Run

NAMED_CHARACTERS_MAX = 100_000  # of all named problems, as JSON; all are counted
NOTES_MAX = 100


@dataclass(slots=True)
class Tally:
    """The findings of all runs."""

    segments: int = 0
    bytes: int = 0
    problem_count: int = 0
    leftover_count: int = 0
    problems: list[dict[str, object]] = field(default_factory=list)
    leftovers: list[dict[str, object]] = field(default_factory=list)
    named_characters: int = 0  # of the problems and leftovers

    def add(self, problem: Problem) -> None:
        """Count the problem, and name it if there is room."""
        row = problem_row(problem)
        named = self.leftovers if problem.is_leftover else self.problems
        if problem.is_leftover:
            self.leftover_count += 1
        else:
            self.problem_count += 1
        self.named_characters += len(json.dumps(row))
        if self.named_characters <= NAMED_CHARACTERS_MAX:
            named.append(row)

    def fields(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {name: getattr(self, name) for name in self.__slots__}


async def verify(run: Run) -> str:
    """Check from the job's position on; return the result as JSON."""
    request = VerificationRequest.parse(run.job.request)
    position, tally = _parse_position(run.job.position)
    segments, size_bytes = tally.segments, tally.bytes

    def count(findings: Findings) -> None:
        tally.segments = segments + findings.segment_count
        tally.bytes = size_bytes + findings.size_bytes

    async def checked(position: CheckPosition, findings: Findings) -> None:
        count(findings)
        if run.is_save_due():
            run.move_to(_position(position, tally))
            await run.save()
        try:
            run.require_time()
        except Interrupted:
            run.move_to(_position(position, tally))
            raise

    stores = run.settings.metadata_url, run.settings.objects_url
    async with planned_by_metadata(*stores, request.topics) as planned:
        run.require_time()
        findings = await continue_check(
            planned, position, on_problem=tally.add, on_checked=checked, on_step=run.step
        )
        notes = list(planned.notes)[:NOTES_MAX]
    count(findings)
    found = tally.fields()
    del found["named_characters"]
    return json.dumps({"ok": not tally.problem_count, **found, "notes": notes})


def _position(position: CheckPosition, tally: Tally) -> str:
    where = [*position.partition, position.start]
    return json.dumps({"at": where, "tally": tally.fields()}, separators=(",", ":"))


def _parse_position(text: str) -> tuple[CheckPosition | None, Tally]:
    if not text:
        return None, Tally()
    fields = json.loads(text)
    topic, partition, start = fields["at"]
    position = CheckPosition(TopicPartition(topic, partition), start)
    return position, Tally(**fields["tally"])
