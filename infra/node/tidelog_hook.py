"""The lifecycle hook of an auto scaling group: an instance goes once all of its nodes have drained.

Without a word the group waits for the hook's heartbeat timeout. Each launcher leaves a file when
its node has drained, and whoever finds the files of all processes completes the hook. Two may find
them at once: the second one is told that there is nothing to complete.

Source: Amazon EC2 Auto Scaling user guide, lifecycle hooks.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

logger = logging.getLogger("tidelog_hook")


class TerminationHook:
    """The hook, as one process of the instance sees it."""

    def __init__(
        self, group: str, name: str, *, folder: Path, process: int, processes: int
    ) -> None:
        """``folder`` is common to the processes of the instance, which are numbered from 0."""
        self._group = group
        self._name = name
        self._folder = folder
        self._process = process
        self._processes = processes

    def drained(self, instance_id: str) -> bool:
        """Note that this process has drained; complete the hook if it is the last.

        Returns whether it was. A failure is logged: then the hook ends with its time limit.
        """
        self._file(self._process).touch()
        if not all(self._file(number).exists() for number in range(self._processes)):
            return False
        client: Any = boto3.client(
            "autoscaling",
            config=Config(connect_timeout=3, read_timeout=5, retries={"total_max_attempts": 2}),
        )
        try:
            client.complete_lifecycle_action(
                AutoScalingGroupName=self._group,
                LifecycleHookName=self._name,
                InstanceId=instance_id,
                LifecycleActionResult="CONTINUE",
            )
        except (ClientError, BotoCoreError) as error:
            logger.warning("the lifecycle hook was not completed, it will time out: %s", error)
        else:
            logger.info("all nodes of the instance have drained, lifecycle hook completed")
        finally:
            client.close()
        return True

    def _file(self, process: int) -> Path:
        return self._folder / f"drained-{process}"
