"""Checks what was planned, from its beginning to its end."""

from __future__ import annotations

from collections.abc import Callable

from tidelog_core.verification.segment_check import Problem
from tidelog_core.verification.source import Planned
from tidelog_core.verification.verification import Findings, Verification


def _ignore(_value: object) -> None:
    pass


async def check_planned(
    planned: Planned,
    *,
    on_bytes: Callable[[int], None] = _ignore,
    on_problem: Callable[[Problem], None] = _ignore,
    on_step: Callable[[str], None] = _ignore,
) -> Findings:
    """Check the planned segments, and return the findings with those that were found before.

    ``on_problem`` gets each problem when it is found, ``on_step`` a sentence for each partition.
    """
    verification = Verification(
        cluster_id=planned.cluster_id,
        truth=planned.truth,
        objects=planned.objects,
        on_bytes=on_bytes,
    )
    for number, partition in enumerate(planned.partitions, 1):
        on_step(f"verifying {partition.name} ({number} of {len(planned.partitions)})")
        async for problem in verification.run([partition]):
            on_problem(problem)
    for problem in planned.strays:
        verification.add(problem)
        on_problem(problem)
    return verification.findings
