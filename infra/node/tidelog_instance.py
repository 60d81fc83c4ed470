"""The instance metadata service of EC2. Source: EC2 user guide, IMDSv2."""

from __future__ import annotations

import urllib.request

METADATA_URL = "http://169.254.169.254"
METADATA_SECONDS_MAX = 2.0
METADATA_TOKEN_SECONDS = 300


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
        """Return whether the auto scaling group is terminating the instance."""
        try:
            return self.get("autoscaling/target-lifecycle-state") == "Terminated"
        except OSError:
            return False  # Not in a group, or no answer now.

    def _call(self, path: str, *, headers: dict[str, str], method: str = "GET") -> str:
        request = urllib.request.Request(self._url + path, headers=headers, method=method)
        with urllib.request.urlopen(request, timeout=METADATA_SECONDS_MAX) as answer:
            text: str = answer.read().decode()
            return text
