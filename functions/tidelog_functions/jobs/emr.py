"""Job runs on EMR Serverless. Requests block: an invocation makes two."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError
from tidelog_core.errors import ErrorCode, TidelogError

from tidelog_functions.jobs.settings import JobSettings

# Source: EMR Serverless API reference, JobRun. All states except final ones.
STATES_UNDER_WAY = ("SUBMITTED", "PENDING", "SCHEDULED", "QUEUED", "RUNNING", "CANCELLING")
PAGES_MAX = 20


class JobsUnavailable(TidelogError):
    """EMR returned an error, or no answer."""

    code = ErrorCode.unknown_server_error
    retriable = True


class JobNotStarted(TidelogError):
    """EMR rejected the run: it does not exist."""

    code = ErrorCode.unknown_server_error


class EmrJobs:
    """The job runs of one application."""

    def __init__(self, client: Any, settings: JobSettings) -> None:
        self._client = client
        self._settings = settings

    def under_way(self, name: str) -> list[str]:
        """Return the ids of the job's unfinished runs. Raises ``JobsUnavailable``."""
        found: list[str] = []
        token: dict[str, str] = {}
        try:
            for _ in range(PAGES_MAX):
                page = self._client.list_job_runs(
                    applicationId=self._settings.application_id,
                    states=list(STATES_UNDER_WAY),
                    **token,
                )
                found += [run["id"] for run in page["jobRuns"] if run.get("name") == name]
                if found or not page.get("nextToken"):
                    break
                token = {"nextToken": page["nextToken"]}
        except (ClientError, BotoCoreError) as error:
            raise JobsUnavailable(f"runs cannot be listed: {error}") from error
        return found

    def start(self, name: str, arguments: Sequence[str], *, token: str) -> str:
        """Start a run and return its id; the same token always means the same run.

        Raises ``JobNotStarted`` if it was rejected, ``JobsUnavailable`` if it may have been
        started.
        """
        settings = self._settings
        submit: dict[str, object] = {
            "entryPoint": settings.entry_point,
            "entryPointArguments": list(arguments),
        }
        if settings.spark_parameters:
            submit["sparkSubmitParameters"] = settings.spark_parameters
        logging = {
            "enabled": True,
            "logGroupName": settings.log_group,
            "logStreamNamePrefix": name,
        }
        try:
            started = self._client.start_job_run(
                applicationId=settings.application_id,
                clientToken=token,
                executionRoleArn=settings.role_arn,
                name=name,
                jobDriver={"sparkSubmit": submit},
                configurationOverrides={
                    "monitoringConfiguration": {"cloudWatchLoggingConfiguration": logging}
                },
                executionTimeoutMinutes=settings.timeout_minutes,
            )
        except ClientError as error:
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            if 400 <= status < 500:
                raise JobNotStarted(f"EMR has refused the run: {error}") from error
            raise JobsUnavailable(f"it is not known whether a run was started: {error}") from error
        except BotoCoreError as error:
            raise JobsUnavailable(f"it is not known whether a run was started: {error}") from error
        run_id: str = started["jobRunId"]
        return run_id
