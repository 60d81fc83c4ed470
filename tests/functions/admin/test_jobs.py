"""Starting jobs: a request that comes again, and one that is too large."""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest

from tests.support.admin_calls import Api


class NoRuns:
    """Starts nothing: a job waits."""

    async def start(self, job_id: UUID) -> None:
        pass


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
