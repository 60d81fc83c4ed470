"""A task of ECS with a network interface of its own (``awsvpc``), such as Fargate's.

A task is never started again: another one, with another address and an empty disk, replaces it. It
is told to stop by SIGTERM, also two minutes before Fargate Spot takes it away.

Source: Amazon ECS developer guide, task metadata endpoint version 4.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

METADATA_VARIABLE = "ECS_CONTAINER_METADATA_URI_V4"
METADATA_SECONDS_MAX = 5.0


@dataclass(frozen=True, slots=True)
class Task:
    """The task that this process runs in."""

    name: str  # the last part of its ARN
    address: str
    host: str
    zone: str
    is_lasting: bool = False

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> Task:
        """Return the task of this environment. Raises ``OSError`` if there is none."""
        url = environment.get(METADATA_VARIABLE)
        if not url:
            raise OSError(f"{METADATA_VARIABLE} is not set: this is no task of ECS")
        with urllib.request.urlopen(f"{url}/task", timeout=METADATA_SECONDS_MAX) as answer:
            told: Mapping[str, Any] = json.load(answer)
        networks = [one for container in told["Containers"] for one in container["Networks"]]
        interface = next(one for one in networks if one["NetworkMode"] == "awsvpc")
        address = str(interface["IPv4Addresses"][0])
        return cls(
            name=str(told["TaskARN"]).rpartition("/")[2],
            address=address,
            host=str(interface.get("PrivateDNSName") or address),
            zone=str(told["AvailabilityZone"]),
        )

    def instance_count(self) -> int:
        """Raise ``OSError``: tasks have no zones of a fixed number of machines."""
        raise OSError("tasks have no number of a zone: leave --zone-number out")

    def is_terminating(self) -> bool:
        """Return False: the end of a task begins with SIGTERM."""
        return False

    def finish(self) -> None:
        """Do nothing: ECS sees the end of the process."""
