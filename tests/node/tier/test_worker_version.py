"""A node and its worker are of one version, or the worker ends and the node says so."""

from __future__ import annotations

import asyncio
import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
from tidelog_core.errors import TierUnavailable
from tidelog_node.node_health import NodeHealth
from tidelog_node.processes import worker_version
from tidelog_node.processes.worker_version import (
    NODE_VERSION,
    OTHER_VERSION_STATUS,
    PROTOCOL,
    version_argument,
)
from tidelog_node.tier import worker_starts
from tidelog_node.tier.client import TierClient
from tidelog_node.tier.protocol import Request, UploadResult

from tests.node.tier.test_client import command
from tests.support.message_forms import fields_of
from tests.support.tier_node import READY_TIMEOUT_S


def run_worker(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tidelog_node.tier.worker_process", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize(
    "arguments", [["--node-version=0.0.1/1"], [], ["--node-version=0.0.1/1", "--of-the-future=1"]]
)
def test_a_worker_that_another_version_starts_ends_and_says_why(
    tmp_path: Path, arguments: list[str]
) -> None:
    """Also if it does not know all of the arguments."""
    others = [text for text in command(tmp_path).arguments()[3:] if text != version_argument()]
    done = run_worker(*others, *arguments)
    assert done.returncode == OTHER_VERSION_STATUS
    named = "0.0.1/1" if arguments else "unknown"
    assert f"version='{NODE_VERSION}' node_version='{named}'" in done.stderr.replace(
        "=unk", "='unk"
    )
    assert "restart the node" in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_worker_of_another_version_says_so_in_the_form_of_the_log(tmp_path: Path) -> None:
    done = run_worker("--node-version=0.0.1/1", "--log-format=json")
    (line,) = done.stderr.splitlines()
    assert json.loads(line)["node_version"] == "0.0.1/1"


async def test_a_node_whose_files_were_replaced_says_that_it_has_to_be_restarted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It goes on by itself once the files that it was loaded from are back."""
    monkeypatch.setattr(worker_starts, "OTHER_VERSION_DELAY_S", 0.05)
    health = NodeHealth()
    client = TierClient(command(tmp_path), health=health)
    with monkeypatch.context() as loaded:  # This process is the earlier program.
        loaded.setattr(worker_version, "NODE_VERSION", "0.0.1/1")
        client.start()
        with pytest.raises(TierUnavailable):
            await client.status()
        (fault,) = health.reasons
        assert fault.name == worker_version.OTHER_VERSION
        assert "restart the node" in fault.detail
        async with asyncio.timeout(READY_TIMEOUT_S):
            while client.restart_count < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        said = [one for one in caplog.records if one.message == "tier worker cannot serve"]
        assert len(said) == 1
    await client.wait_ready(READY_TIMEOUT_S)
    assert health.is_well
    await client.close()


async def test_a_node_whose_workers_never_serve_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_starts, "RESTART_DELAY_S_MAX", 0.01)
    health = NodeHealth()
    client = TierClient(command(tmp_path, objects="gopher://nowhere"), health=health)
    client.start()
    with pytest.raises(TierUnavailable):
        await client.status()
    async with asyncio.timeout(READY_TIMEOUT_S):
        while health.is_well:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    (fault,) = health.reasons
    assert fault.name == worker_starts.NOT_STARTING
    await client.close()


async def test_a_worker_that_starts_slowly_serves_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """On a busy machine each one was killed before it served, and then the next one."""
    monkeypatch.setattr(worker_starts, "CONNECT_S_FIRST", 0.03)  # No worker starts as fast.
    monkeypatch.setattr(worker_starts, "RESTART_DELAY_S_MAX", 0.01)
    client = TierClient(command(tmp_path))
    client.start()
    await client.wait_ready(2 * READY_TIMEOUT_S)
    assert client.restart_count >= 1
    assert "tier worker does not serve in time, killed" in caplog.messages
    await client.close()


# The digests of what follows, by the number of the protocol. A change needs another number.
FORMS = {4: "772ed27d8c078ee1"}


def test_messages_and_arguments_have_the_form_of_their_protocol(tmp_path: Path) -> None:
    arguments = [text.partition("=")[0] for text in command(tmp_path).arguments()[3:]]
    forms = [arguments, sorted(dict(fields_of(Request | UploadResult)).items())]
    found = hashlib.sha256(json.dumps(forms).encode()).hexdigest()[:16]
    assert {PROTOCOL: found} == FORMS, f"raise PROTOCOL, and note the digest: {forms}"
