"""Starting jobs: a request that comes again, and one that is too large."""

from __future__ import annotations

import time
from uuid import UUID, uuid4

import pytest
from tidelog_functions.admin_jobs.store import CALLER_UNENDED_MAX, UNENDED_MAX

from tests.support.admin_calls import CALLER, Answered, Api, an_event


class NoRuns:
    """Starts nothing: a job waits."""

    async def start(self, job_id: UUID) -> None:
        pass


BOB = "arn:aws:sts::123456789012:assumed-role/ops/bob"


def starting(api: Api, identity: str) -> Answered:
    """Return the answer to that caller's request to count a key."""
    event = an_event("POST", "/erasures", {"topic": "t", "key_base64": "aw==", "dry_run": True})
    event["requestContext"]["authorizer"] = {"iam": {"userArn": identity}}
    return api.send(event)


@pytest.fixture
def topics(api: Api) -> Api:
    """With two topics, and jobs that wait."""
    api.cluster.jobs = NoRuns()
    for name in ("t", "u"):
        api.done("POST", "/topics", {"name": name, "partition_count": 1})
    return api


def test_the_id_of_a_job_is_not_taken_for_another_request(topics: Api) -> None:
    """Else who uses an id again would be told that the other key is erased."""
    job_id = str(uuid4())
    body = {"topic": "t", "key_base64": "aw==", "job_id": job_id}
    others = (
        {**body, "topic": "u"},
        {**body, "dry_run": True},
        {**body, "timeout_seconds": 5},
    )
    assert topics.done("POST", "/erasures", body)["state"] == "waiting"
    assert topics("POST", "/erasures", {**body, "key_base64": "bA=="}).status == 409
    for state in ("waiting", "cancelled"):
        for other in others:
            assert topics("POST", "/erasures", other).status == 409
        assert topics("POST", "/verifications", {"job_id": job_id}).status == 409
        assert topics.done("POST", "/erasures", body)["state"] == state
        topics.done("POST", f"/jobs/{job_id}/cancel")


def test_a_request_that_has_no_room_in_a_job_is_refused(topics: Api) -> None:
    large = {"topic": "t", "key_base64": "A" * 120_000}
    answer = topics("POST", "/erasures", large)
    assert answer.status == 422
    assert "a job takes 100000" in answer.body["detail"]
    assert "name fewer topics" in answer.body["hint"]
    assert topics("POST", "/verifications", {"topics": ["t", "nowhere"]}).status == 404
    assert topics.done("GET", "/jobs")["jobs"] == []
    assert topics.done("POST", "/verifications", {"topics": ["t", "u"]})["topics"] == ["t", "u"]


def test_the_jobs_of_one_caller_leave_room_for_those_of_others(topics: Api) -> None:
    """Without an authorizer too: callers are told apart by their IAM identity."""
    for _ in range(CALLER_UNENDED_MAX):
        assert topics.done("POST", "/verifications", {})["caller"] == CALLER
    refused = topics("POST", "/verifications", {})
    assert refused.problem == (409, "THROTTLING_QUOTA_EXCEEDED")
    assert f"{CALLER} has {CALLER_UNENDED_MAX} jobs that wait or run" in refused.body["detail"]
    assert "cancel one" in refused.body["hint"]
    others = starting(topics, BOB)
    assert (others.status, others.body["caller"]) == (
        202,
        "User:arn:aws:iam::123456789012:role/ops",
    )
    ended = topics.done("GET", "/jobs")["jobs"][-1]["job_id"]
    topics.done("POST", f"/jobs/{ended}/cancel")
    topics.done("POST", "/verifications", {})
    assert UNENDED_MAX >= 4 * CALLER_UNENDED_MAX


def test_an_api_with_few_executions_answers_about_a_job_at_once(topics: Api) -> None:
    """Five clients that wait for their jobs would hold all of Lambda's executions."""
    job_id = topics.done("POST", "/verifications", {})["job_id"]
    began = time.monotonic()
    job = topics.done("GET", f"/jobs/{job_id}", wait_seconds=20)
    assert (job["state"], job["steps"]) == ("waiting", [])
    assert time.monotonic() - began < 10
