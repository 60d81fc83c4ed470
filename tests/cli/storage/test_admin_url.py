"""``tier status``, ``verify`` and ``erase`` by the admin API alone: no store is reached."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from tidelog import Admin, Producer
from tidelog_cli.failures import CommandFailed
from tidelog_cli.storage.admin_api import TOKEN_FILE_VARIABLE, AdminApi

from tests.support.command import called
from tests.support.http_answers import Asked, HttpAnswers
from tests.support.local_admin import LocalAdmin, local_admin
from tests.support.node_process import NodeProcess
from tests.support.waiting import eventually
from tools.ports import free_port


@pytest.fixture(scope="module")
def api(cli_cluster: tuple[NodeProcess, ...]) -> Iterator[LocalAdmin]:
    node = cli_cluster[0]
    with local_admin(str(node.metadata_store), str(node.object_store)) as running:
        yield running


@pytest.fixture
def filled(cli_cluster: tuple[NodeProcess, ...], tmp_path: Path) -> Iterator[str]:
    """The name of a topic of 60 records, 12 of them of the key k3, most of them tiered."""
    topic, bootstrap = tmp_path.name.replace("_", "-"), cli_cluster[0].address
    settings = {"segment.bytes": "3000", "file.delete.delay.ms": "0"}

    async def fill() -> None:
        async with Admin(bootstrap) as admin, Producer(bootstrap) as producer:
            await admin.create_topic(topic, configs=settings)
            for number in range(60):
                await producer.send(topic, b"%06d" % number + b"x" * 90, key=b"k%d" % (number % 5))
                if number % 5 == 4:
                    await producer.flush()  # a batch of its own

    asyncio.run(fill())
    yield topic
    called("topic", "delete", topic, bootstrap=bootstrap)


def test_status_is_that_of_the_store(
    api: LocalAdmin, filled: str, cli_cluster: tuple[NodeProcess, ...]
) -> None:
    asked = ("tier", "status", filled, "--json")

    def by_store() -> list[dict[str, object]]:
        rows: list[dict[str, object]] = called(
            *asked, "--metadata", cli_cluster[0].metadata_store
        ).document
        return rows

    eventually(lambda: by_store()[0]["segments"] != 0 and by_store()[0]["copying"] == 0, "tiered")
    assert called(*asked, "--admin-url", api.url).document == by_store()
    assert called("tier", "status", filled, "--admin-url", api.url).lines[0].startswith("TOPIC")


@pytest.mark.slow
def test_key_is_erased_by_a_job_that_tells_its_steps(
    api: LocalAdmin, filled: str, tmp_path: Path
) -> None:
    asked = ("erase", filled, "--key", "k3", "--admin-url", api.url)
    counted = called(*asked, "--dry-run", "--json").document
    assert counted[0]["records"] <= 12
    receipt = tmp_path / "receipt.json"
    outcome = called(*asked, "--receipt", receipt)
    assert outcome.lines[0].startswith(f"12 records of the key removed from topic {filled}, ")
    assert f"tidelog: searching the tier of {filled}-0 (1 of 1)\n" in outcome.errors
    document = json.loads(receipt.read_bytes())
    assert document["is_done"]
    assert "k3" not in receipt.read_text()
    assert called(*asked).lines[0].startswith("nothing found: ")
    verified = called("verify", filled, "--admin-url", api.url)
    assert verified.lines[-1].endswith(" bytes checked: all is well")
    assert f"tidelog: verifying {filled}-0 (1 of 1)\n" in verified.errors
    found = called("verify", filled, "--admin-url", api.url, "--json").document
    assert (found["ok"], found["problems"]) == (True, [])


def test_damage_is_found_by_the_job_too(
    api: LocalAdmin, filled: str, cli_cluster: tuple[NodeProcess, ...]
) -> None:
    store = Path(str(cli_cluster[0].object_store).removeprefix("file://"))
    eventually(lambda: any(filled in str(path) for path in store.rglob("*.log")), "tiered")
    damaged = next(path for path in store.rglob("*.log") if filled in str(path))
    whole = damaged.read_bytes()
    damaged.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    try:
        outcome = called("verify", filled, "--admin-url", api.url, status=1)
        assert damaged.name in outcome.out.decode()
        assert "problem" in outcome.lines[-1]
    finally:
        damaged.write_bytes(whole)


def test_what_the_api_refuses_is_told_in_one_line(api: LocalAdmin, filled: str) -> None:
    near = filled[:-1] + "x"
    for command in (("verify",), ("tier", "status"), ("erase", "--key", "k")):
        outcome = called(*command, near, "--admin-url", api.url, status=1)
        assert outcome.errors == f"tidelog: there is no topic {near!r}; did you mean {filled!r}?\n"
    stores = ("--data-dir", "/nowhere")
    outcome = called("verify", "--admin-url", api.url, *stores, status=2)
    assert "--admin-url needs no --data-dir" in outcome.errors
    no_url = called("admin-job", "list", status=2).errors
    assert "give --admin-url, or a --context with admin.url" in no_url
    assert "must begin with http" in called("verify", "--admin-url", "x:1", status=2).errors
    refused = called("verify", "--admin-url", f"http://127.0.0.1:{free_port()}", status=1)
    assert "does not answer" in refused.errors


def test_jobs_are_listed_shown_and_cancelled(api: LocalAdmin, filled: str, tmp_path: Path) -> None:
    where = ("--admin-url", api.url)
    assert api("GET", "/jobs/nobody")[0] == 404
    job_id = str(uuid4())
    body = {"topics": [filled], "job_id": job_id}
    assert api.done("POST", "/verifications", body)["job_id"] == job_id
    eventually(
        lambda: api.done("GET", f"/jobs/{job_id}", wait_seconds=1)["state"] == "done", "it ends"
    )
    assert api.done("POST", "/verifications", body)["state"] == "done"  # It was the same request.
    assert (
        api("POST", "/erasures", {"topic": filled, "key_base64": "aw==", "job_id": job_id})[0]
        == 409
    )
    listed = called("admin-job", "list", *where)
    assert [line.split()[:4] for line in listed.lines if job_id in line] == [
        [job_id, "verification", "done", filled]
    ]
    shown = called("admin-job", "show", job_id, *where).lines
    assert shown[:2] == [f"verification of {filled}: done", f"  verifying {filled}-0 (1 of 1)"]
    assert called("admin-job", "cancel", job_id, *where).lines == [f"job {job_id}: done"]
    outcome = called("admin-job", "show", str(uuid4()), *where, status=1)
    assert "there is no job" in outcome.errors
    refused = api("POST", "/erasures", {"topic": "nowhere", "key_base64": "aw=="})
    assert refused[0] == 404
    receipt = tmp_path / "receipt.json"
    called("erase", filled, "--key", "none", *where, "--receipt", receipt)
    erased = called("admin-job", "list", *where, "--json").document[0]
    assert (erased["kind"], erased["state"]) == ("erasure", "done")
    assert api.done("GET", f"/jobs/{erased['job_id']}/receipt") == json.loads(receipt.read_bytes())
    assert api("GET", f"/jobs/{job_id}/receipt")[0] == 404


def test_the_url_is_taken_from_the_context_or_the_environment_if_no_stores_are_given(
    api: LocalAdmin,
    filled: str,
    cli_cluster: tuple[NodeProcess, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in [name for name in os.environ if name.startswith("TIDELOG_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("TIDELOG_CONFIG", str(tmp_path / "config.toml"))
    nowhere = f"sqlite:///{tmp_path}/nowhere.db"
    called("context", "add", "far", "--set", f"admin.url={api.url}")
    called(
        *("context", "add", "both", "--set", f"admin.url={api.url}"),
        *("--set", f"metadata.store={nowhere}"),
    )
    status = ("tier", "status", filled, "--json")
    for context in ("far", "both"):
        chosen = ("--context", context)
        assert called(*chosen, *status).document[0]["topic"] == filled
        assert called(*chosen, "verify", filled).lines[-1].endswith("all is well")
        dry = called(*chosen, "erase", filled, "--key", "k1", "--dry-run", "--json").document
        assert [row["partition"] for row in dry] == [0]
        assert filled in called(*chosen, "admin-job", "list").out.decode()
    # An argument counts before the context, and so does the environment.
    store = ("--metadata", cli_cluster[0].metadata_store)
    assert called("--context", "far", *status, *store).document[0]["topic"] == filled
    refused = called("--context", "far", *status, "--metadata", nowhere, status=1)
    assert "nowhere.db" in refused.errors
    monkeypatch.setenv("TIDELOG_METADATA_STORE", nowhere)
    assert "nowhere.db" in called("--context", "far", *status, status=1).errors
    monkeypatch.setenv("TIDELOG_ADMIN_URL", api.url)
    assert called(*status).document[0]["topic"] == filled
    assert filled in called("admin-job", "list").out.decode()


def test_a_command_that_is_answered_at_once_does_not_ask_again_at_once() -> None:
    asked_at: list[float] = []

    def answer(_: Asked) -> tuple[int, str]:
        asked_at.append(time.monotonic())
        is_done = len(asked_at) == 4
        job = {"state": "done" if is_done else "running", "step_count": 1, "steps": []}
        return 200, json.dumps({**job, "result": {"ok": True}, "problem": None})

    with HttpAnswers(answer) as server:
        assert AdminApi(server.url).run_job("/verifications", {})[1] == {"ok": True}
        assert len(server.asked) == 4
    assert asked_at[-1] - asked_at[0] > 1.4  # It waits for 0.5 s, then twice as long.


def test_no_redirection_takes_a_token_to_another_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text("secret")
    monkeypatch.setenv(TOKEN_FILE_VARIABLE, str(tmp_path / "token"))
    with HttpAnswers(lambda _: (302, "{}")) as server:
        api = AdminApi(server.url)
        with pytest.raises(CommandFailed, match="302"):
            api.ask("POST", "/verifications", {})
        assert server.asked[0].headers["authorization"] == "Bearer secret"
