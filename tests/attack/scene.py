"""What an attack is made of, and how it says that it got what it wanted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.support.arena import Arena
from tests.support.wire_client import WireClient, api_versions_request

ANSWER_SECONDS_MAX = 180.0


class AttackSucceeded(AssertionError):
    """A node did what the attacker wanted."""


@dataclass(frozen=True, slots=True)
class Scene:
    """One attack.

    ``run`` is given 1.0 for the size that was seen, less for a short run. It returns a few words
    on what it saw, and raises ``AttackSucceeded``. What holds for all scenes (no lease lost, no
    record lost, no traceback) is looked at by ``tests.attack.run``.
    """

    point: int
    title: str
    run: Callable[[Arena, float], str]
    leases_lost_max: int = 0  # more where the attack is to cost a lease, as a pause is


def all_live(arena: Arena) -> None:
    """Raise ``AttackSucceeded`` where a node is down or does not answer."""
    for node in arena.nodes.values():
        if node.process is None or node.process.poll() is not None:
            raise AttackSucceeded(f"node {node.broker_id} is down: {node.log[-500:]}")
        with WireClient(node.port) as client:
            client.socket.settimeout(ANSWER_SECONDS_MAX)
            client.call(api_versions_request())
