"""The instance metadata service of EC2. Source: EC2 user guide, IMDSv2."""

from __future__ import annotations

import urllib.request
from dataclasses import dataclass

from tidelog_hook import TerminationHook

METADATA_URL = "http://169.254.169.254"
METADATA_SECONDS_MAX = 2.0
METADATA_TOKEN_SECONDS = 300
# Read from a tag that the group gives its machines, because a tag can change without a
# replacement of the machines.
INSTANCE_COUNT = "tags/instance/tidelog-instances-per-zone"


class InstanceMetadata:
    """What the machine knows of itself."""

    def __init__(self, url: str) -> None:
        self._url = url

    def get(self, name: str) -> str:
        """Return one value. Raises ``OSError`` if it does not exist."""
        token = self._call(
            "/latest/api/token",
            method="PUT",
            headers={"X-aws-ec2-metadata-token-ttl-seconds": str(METADATA_TOKEN_SECONDS)},
        )
        return self._call(f"/latest/meta-data/{name}", headers={"X-aws-ec2-metadata-token": token})

    def is_terminating(self) -> bool:
        """Return whether the group is terminating the instance, or spot capacity ends."""
        return self._find("autoscaling/target-lifecycle-state") == "Terminated" or bool(
            self._find("spot/instance-action")
        )

    def _find(self, name: str) -> str:
        try:
            return self.get(name)
        except OSError:
            return ""  # There is no such value, or no answer now.

    def _call(self, path: str, *, headers: dict[str, str], method: str = "GET") -> str:
        request = urllib.request.Request(self._url + path, headers=headers, method=method)
        with urllib.request.urlopen(request, timeout=METADATA_SECONDS_MAX) as answer:
            text: str = answer.read().decode()
            return text


@dataclass(frozen=True, slots=True)
class Instance:
    """The machine that this process runs on."""

    metadata: InstanceMetadata
    hook: TerminationHook | None
    name: str
    address: str
    host: str
    zone: str
    is_lasting: bool = True

    @classmethod
    def read(cls, metadata: InstanceMetadata, hook: TerminationHook | None = None) -> Instance:
        """Return this machine. Raises ``OSError``."""
        return cls(
            metadata,
            hook,
            name=metadata.get("instance-id"),
            address=metadata.get("local-ipv4"),
            host=metadata.get("local-hostname"),
            zone=metadata.get("placement/availability-zone"),
        )

    def instance_count(self) -> int:
        """Return the number of machines of the zone. Raises ``OSError``."""
        return int(self.metadata.get(INSTANCE_COUNT))

    def is_terminating(self) -> bool:
        """Return whether the machine is about to be taken away."""
        return self.metadata.is_terminating()

    def finish(self) -> None:
        """Tell the group that this process has drained."""
        if self.hook is not None:
            self.hook.drained(self.name)
