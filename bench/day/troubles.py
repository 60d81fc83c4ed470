"""The failures of a simulated day."""

from __future__ import annotations

from dataclasses import dataclass

from bench.day.cluster import Bools, Cluster
from bench.day.scenario import HOUR_S, Scenario


@dataclass(frozen=True, slots=True)
class Trouble:
    """Brokers that fail for a time."""

    what: str
    who: Bools
    from_s: float
    lasts_s: float
    keeps_disk: bool


def troubles(scenario: Scenario, cluster: Cluster) -> tuple[Trouble, ...]:
    """Return the scenario's failures."""
    return (
        Trouble(
            "a machine",
            cluster.machine_of == scenario.machines // 2,
            scenario.machine_fails_at_h * HOUR_S,
            scenario.machine_replaced_after_s,
            keeps_disk=False,
        ),
        Trouble(
            "a zone",
            cluster.zone_of == 0,
            scenario.zone_fails_at_h * HOUR_S,
            scenario.zone_fails_for_s,
            keeps_disk=True,
        ),
    )
