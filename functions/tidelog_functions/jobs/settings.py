"""Settings of the jobs' application.

TIDELOG_JOB_APPLICATION         id of the EMR Serverless application
TIDELOG_JOB_ROLE                ARN of the jobs' role
TIDELOG_JOB_ENTRY_POINT         s3://… of the job's program
TIDELOG_JOB_SPARK_PARAMETERS    further options for spark-submit
TIDELOG_JOB_LOG_GROUP           log group of the jobs
TIDELOG_JOB_TIMEOUT_MINUTES     longest duration of a run, at least 5
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tidelog_core.errors import InvalidConfig

TIMEOUT_MINUTES = 720
TIMEOUT_MINUTES_MIN = 5  # Source: EMR Serverless API reference, StartJobRun.

_REQUIRED = (
    "TIDELOG_JOB_APPLICATION",
    "TIDELOG_JOB_ROLE",
    "TIDELOG_JOB_ENTRY_POINT",
    "TIDELOG_JOB_LOG_GROUP",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSettings:
    """The settings for starting a job."""

    application_id: str
    role_arn: str
    entry_point: str
    spark_parameters: str
    log_group: str
    timeout_minutes: int


def parse_job_settings(environment: Mapping[str, str]) -> JobSettings:
    """Return the settings. Raises ``InvalidConfig`` with every problem at once."""
    problems = [
        f"environment variable {name} is required"
        for name in _REQUIRED
        if not environment.get(name)
    ]
    text = environment.get("TIDELOG_JOB_TIMEOUT_MINUTES", str(TIMEOUT_MINUTES))
    if not text.isdecimal() or int(text) < TIMEOUT_MINUTES_MIN:
        problems.append(
            f"TIDELOG_JOB_TIMEOUT_MINUTES is {text!r}, not a number from {TIMEOUT_MINUTES_MIN} on"
        )
    if problems:
        raise InvalidConfig(problems)
    return JobSettings(
        application_id=environment["TIDELOG_JOB_APPLICATION"],
        role_arn=environment["TIDELOG_JOB_ROLE"],
        entry_point=environment["TIDELOG_JOB_ENTRY_POINT"],
        spark_parameters=environment.get("TIDELOG_JOB_SPARK_PARAMETERS", ""),
        log_group=environment["TIDELOG_JOB_LOG_GROUP"],
        timeout_minutes=int(text),
    )
