"""Carries out a planned check, from its beginning or from where an earlier one was interrupted."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from tidelog_core.verification.segment_check import Problem
from tidelog_core.verification.source import Planned
from tidelog_core.verification.tail_check import TailCheck
from tidelog_core.verification.verification import CheckPosition, Findings, Verification


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
    await _check_chains(planned, verification, on_problem, on_step=on_step, on_object=_nothing)
    for problem in planned.strays:
        verification.add(problem)
        on_problem(problem)
    return verification.findings


async def continue_check(
    planned: Planned,
    position: CheckPosition | None,
    *,
    on_problem: Callable[[Problem], None],
    on_checked: Callable[[CheckPosition, Findings], Awaitable[None]],
    on_step: Callable[[str], None],
) -> Findings:
    """Carry out the plan from the position on, in the order of topics and partitions.

    ``on_checked`` gets each new position, and the findings since this call began; it may raise
    ``Interrupted``. ``on_step`` gets a sentence for each partition.
    """

    async def checked(position: CheckPosition) -> None:
        await on_checked(position, verification.findings)

    verification = Verification(
        cluster_id=planned.cluster_id,
        truth=planned.truth,
        objects=planned.objects,
        on_bytes=_ignore,
        on_checked=checked,
    )
    plans = sorted(planned.partitions, key=lambda plan: plan.name)
    for number, plan in enumerate(plans, 1):
        start = 0
        if position is not None and plan.name <= position.partition:
            if plan.name < position.partition or position.start is None:
                continue
            start = position.start
        on_step(f"verifying {plan.name} ({number} of {len(plans)})")
        async for problem in verification.run([plan], start=start):
            on_problem(problem)

    async def walked() -> None:
        if plans:  # Chains are checked in one go: who is interrupted begins with them again.
            await checked(CheckPosition(plans[-1].name, None))

    await _check_chains(planned, verification, on_problem, on_step=on_step, on_object=walked)
    for problem in planned.strays:
        verification.add(problem)
        on_problem(problem)
    return verification.findings


async def _check_chains(
    planned: Planned,
    verification: Verification,
    on_problem: Callable[[Problem], None],
    *,
    on_step: Callable[[str], None],
    on_object: Callable[[], Awaitable[None]],
) -> None:
    """Check the chains of diskless topics; problems are added when all of them are checked."""
    if not planned.chains.tails:
        return
    on_step(f"verifying {len(planned.chains.objects)} objects of chains")
    check = TailCheck(planned.objects, planned.cluster_id, planned.chains, planned.read_tiered_end)
    problems = await check.run(on_object)
    verification.findings.chain_object_count += check.object_count
    verification.findings.chain_size_bytes += check.size_bytes
    for problem in problems:
        verification.add(problem)
        on_problem(problem)


async def _nothing() -> None:
    pass
