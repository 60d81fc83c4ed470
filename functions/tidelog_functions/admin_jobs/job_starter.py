"""Starts runs of jobs: as asynchronous invocations of a Lambda function, or in threads."""

from __future__ import annotations

import asyncio
import json
import logging
from functools import cached_property
from typing import Any, Protocol
from uuid import UUID

logger = logging.getLogger(__name__)

JOB_ID = "job_id"  # the only field of the event


class JobStarter(Protocol):
    """Starts runs. A job may be started more often than needed: only one run takes it."""

    async def start(self, job_id: UUID) -> None:
        """Start a run of the job soon. If that fails it is only logged: jobs are started again."""


class LambdaStarter:
    """Starts runs as asynchronous invocations."""

    def __init__(self, function: str) -> None:
        """``function`` is the name or the ARN of the function of ``handler``."""
        self._function = function

    async def start(self, job_id: UUID) -> None:
        """Have Lambda queue an event."""
        # Imported when it is needed: most requests of the admin API start nothing.
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            await asyncio.to_thread(
                self._client.invoke,
                FunctionName=self._function,
                InvocationType="Event",
                Payload=json.dumps({JOB_ID: str(job_id)}).encode(),
            )
        except (ClientError, BotoCoreError) as error:
            extra = {"job_id": str(job_id), "reason": str(error)}
            logger.warning("run of a job not started, the schedule starts it", extra=extra)

    @cached_property
    def _client(self) -> Any:
        import boto3
        from botocore.config import Config

        settings = Config(connect_timeout=3, read_timeout=10, retries={"total_max_attempts": 3})
        return boto3.client("lambda", config=settings)
