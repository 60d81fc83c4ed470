"""Starting, supervising and ending the worker process."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tidelog_core.errors import (
    ObjectExists,
    ObjectNotFound,
    StoreUnavailable,
    TidelogError,
    TierUnavailable,
)
from tidelog_core.objects.store import ObjectStore
from tidelog_node.tier.client import TierClient
from tidelog_node.tier.protocol import ByteRange
from tidelog_node.tier.worker_command import WorkerCommand
from tidelog_node.tier.worker_store import INLINE_BYTES_MAX

from tests.support.tier_node import CONFIG, READY_TIMEOUT_S


def command(folder: Path, objects: str | None = None) -> WorkerCommand:
    return WorkerCommand(
        socket=folder / "tier.sock",
        objects=objects or f"file://{folder}/objects",
        cache_dir=folder / "cache",
        node_config=CONFIG,
    )


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_a_closed_client_leaves_no_process_and_no_socket(tmp_path: Path) -> None:
    client = TierClient(command(tmp_path))
    client.start()
    await client.wait_ready(READY_TIMEOUT_S)
    pid = client.worker_pid
    assert pid is not None
    assert (tmp_path / "tier.sock").stat().st_mode & 0o777 == 0o600
    await client.close()
    with pytest.raises(TierUnavailable):
        await client.status()
    assert not is_alive(pid)
    assert not (tmp_path / "tier.sock").exists()


async def test_the_worker_starts_with_the_first_call(tmp_path: Path) -> None:
    client = TierClient(command(tmp_path))
    with pytest.raises(TierUnavailable):
        await client.status()
    client.start()
    assert (client.may_answer, client.worker_pid) == (True, None)
    first, second = await asyncio.gather(client.status(), client.status())
    assert first.keys() == second.keys()
    assert client.worker_pid is not None
    assert client.restart_count == 0
    await client.close()
    assert not client.may_answer


async def test_a_folder_too_deep_for_a_socket_is_no_trouble(tmp_path: Path) -> None:
    client = TierClient(command(tmp_path / ("deep" * 30)))
    client.start()
    await client.wait_ready(READY_TIMEOUT_S)
    await client.close()


async def test_a_worker_that_cannot_start_is_tried_again_and_calls_fail_at_once(
    tmp_path: Path,
) -> None:
    client = TierClient(command(tmp_path, objects="gopher://nowhere"))
    client.start()
    with pytest.raises(TierUnavailable):
        await client.status()
    async with asyncio.timeout(READY_TIMEOUT_S):
        while client.restart_count < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    await client.close()


async def test_closing_fails_what_is_under_way(tmp_path: Path) -> None:
    client = TierClient(command(tmp_path))
    client.start()
    await client.wait_ready(READY_TIMEOUT_S)
    assert client.worker_pid is not None
    os.kill(client.worker_pid, signal.SIGSTOP)
    reading = asyncio.create_task(client.read(ByteRange("a/b.log", 0, 1)))
    await asyncio.sleep(0.05)
    os.kill(client.worker_pid, signal.SIGCONT)
    await client.close()
    with pytest.raises(TidelogError):
        await reading


async def test_an_unreachable_store_is_a_retriable_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")

    client = TierClient(command(tmp_path, objects="s3://bucket/prefix"))
    client.start()
    await client.wait_ready(READY_TIMEOUT_S)
    with pytest.raises(StoreUnavailable) as caught:
        await client.read(ByteRange("a/b.log", 0, 1))
    assert caught.value.retriable
    await client.close()


NODE = """
import asyncio, sys
from pathlib import Path
from tests.node.tier.test_client import command
from tidelog_node.tier.client import TierClient

async def main():
    client = TierClient(command(Path(sys.argv[1])))
    client.start()
    await client.wait_ready(30)
    print(client.worker_pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def test_a_worker_ends_with_its_node_however_that_ends(tmp_path: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", NODE, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    worker_pid = int(child.stdout.readline())
    child.kill()
    child.wait()
    child.stdout.close()
    deadline = time.monotonic() + 60
    while is_alive(worker_pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_settings_reach_the_worker(tmp_path: Path) -> None:
    config = dataclasses.replace(CONFIG, remote_fetch_concurrency=3)
    arguments = dataclasses.replace(command(tmp_path), node_config=config).arguments()
    assert "--fetch-concurrency=3" in arguments
    assert f"--cache-bytes={CONFIG.remote_cache_bytes}" in arguments


async def test_what_the_worker_stores_is_read_back_through_it(tmp_path: Path) -> None:
    large = os.urandom(INLINE_BYTES_MAX + 5)
    (tmp_path / "large").write_bytes(large)

    client: ObjectStore = started(tmp_path)
    await client.put("c/small", b"one")
    await client.put_file("c/large", tmp_path / "large")
    with pytest.raises(ObjectExists):
        await client.put("c/small", b"two")
    assert await client.get("c/large") == large
    assert await client.get_range("c/large", 3, len(large) + 9) == large[3:]
    assert [found.key async for found in client.list("c/")] == ["c/large", "c/small"]
    await client.delete(["c/large"])
    with pytest.raises(ObjectNotFound):
        await client.head("c/large")
    await client.close()


def started(folder: Path) -> TierClient:
    client = TierClient(command(folder))
    client.start()
    return client
