"""Where a node's process runs: on a machine of EC2, or as a task of ECS."""

from __future__ import annotations

from typing import Protocol


class Place(Protocol):
    """What the launcher has to know of it."""

    @property
    def name(self) -> str:
        """An id that no other machine or task has."""

    @property
    def address(self) -> str:
        """Its address in the VPC."""

    @property
    def host(self) -> str:
        """Its name in the VPC, for which certificates are."""

    @property
    def zone(self) -> str:
        """Its availability zone, which is the node's rack."""

    @property
    def is_lasting(self) -> bool:
        """Whether a process that was stopped may be started again here, with its data."""

    def instance_count(self) -> int:
        """Return the number of machines of the zone. Raises ``OSError``."""

    def is_terminating(self) -> bool:
        """Return whether it is about to be taken away."""

    def finish(self) -> None:
        """Tell that this process needs it no more, after ``is_terminating``."""
