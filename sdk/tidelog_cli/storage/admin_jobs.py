"""``tidelog admin-job``: the jobs of the admin API, which other commands start."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any
from urllib.parse import quote

import typer

from tidelog_cli.options import Json
from tidelog_cli.output import print_json, print_table
from tidelog_cli.storage.admin_api import AdminUrl, required_api

JobId = Annotated[str, typer.Argument(metavar="ID", help="The job's id.", show_default=False)]


def list_(*, admin_url: AdminUrl = None, json: Json = False) -> None:
    """List the verifications and erasures of the last week, the newest first."""
    jobs = required_api(admin_url).ask("GET", "/jobs")["jobs"]
    if json:
        print_json(jobs)
        return
    print_table(
        ("id", "kind", "state", "topics", "started", "by"),
        [
            (
                job["job_id"],
                job["kind"],
                _state(job),
                ",".join(job["topics"]) or "all",
                _time(job["created_ms"]),
                job["caller"],
            )
            for job in jobs
        ],
    )


def show(job_id: JobId, *, admin_url: AdminUrl = None, json: Json = False) -> None:
    """Show how far the job ID is, and its result."""
    job = required_api(admin_url).ask("GET", f"/jobs/{quote(job_id, safe='')}")
    if json:
        print_json(job)
        return
    print(f"{job['kind']} of {','.join(job['topics']) or 'all topics'}: {_state(job)}")
    for step in job["steps"]:
        print(f"  {step}")
    if job["problem"]:
        print(job["problem"])
    if job["result"] is not None:
        print_json(job["result"])


def cancel(job_id: JobId, *, admin_url: AdminUrl = None) -> None:
    """Have the job ID end after its current step. What it has done stays done."""
    job = required_api(admin_url).ask("POST", f"/jobs/{quote(job_id, safe='')}/cancel")
    print(f"job {job['job_id']}: {_state(job)}")


def _state(job: dict[str, Any]) -> str:
    is_ending = job["is_cancelled"] and job["state"] == "running"
    return "ends after its step" if is_ending else str(job["state"])


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(sep=" ", timespec="seconds")
