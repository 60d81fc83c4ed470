"""A worker that hangs is sent a limited number of requests, and is killed after a while."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tidelog_core.errors import TidelogError, TierUnavailable
from tidelog_node.tier import client as tier_client
from tidelog_node.tier import unanswered
from tidelog_node.tier.client import TierClient

from tests.node.tier.test_client import command, is_alive
from tests.support.tier_node import READY_TIMEOUT_S
from tests.support.waiting import eventually_async


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[TierClient]:
    client = TierClient(command(tmp_path))
    client.start()
    await client.wait_ready(READY_TIMEOUT_S)
    await client.put("a", b"1")
    yield client
    await client.close()


def stop(client: TierClient) -> int:
    """Stop the worker's process, as a debugger does; return its id."""
    assert client.worker_pid is not None
    os.kill(client.worker_pid, signal.SIGSTOP)
    return client.worker_pid


async def give_up(client: TierClient, count: int) -> None:
    """Begin so many reads, and cancel them."""
    reads = [asyncio.create_task(client.get("a")) for _ in range(count)]
    await asyncio.sleep(0)
    for read in reads:
        read.cancel()
    await asyncio.gather(*reads, return_exceptions=True)


async def test_requests_that_were_given_up_count_until_they_are_answered(
    client: TierClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise retries would fill memory, and the worker would have to catch up with them all."""
    monkeypatch.setattr(tier_client, "REQUESTS_MAX", 5)
    pid = stop(client)
    await give_up(client, 3)
    await give_up(client, 2)
    with pytest.raises(TierUnavailable, match="5 requests wait"):
        async with asyncio.timeout(READY_TIMEOUT_S):
            await client.get("a")
    os.kill(pid, signal.SIGCONT)

    async def is_served() -> bool:
        try:
            return await client.get("a") == b"1"
        except TierUnavailable:
            return False

    await eventually_async(is_served)
    await asyncio.gather(*(client.get("a") for _ in range(5)))
    assert client.worker_pid == pid


async def test_a_client_ends_although_its_worker_reads_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More requests than the socket takes wait for the worker."""
    monkeypatch.setattr(tier_client, "REQUESTS_MAX", 5_000)
    monkeypatch.setattr(tier_client, "STOP_TIMEOUT_S", 0.2)
    client = TierClient(command(tmp_path))
    client.start()
    await client.wait_ready(READY_TIMEOUT_S)
    pid = stop(client)
    await give_up(client, 5_000)
    async with asyncio.timeout(READY_TIMEOUT_S):
        await client.close()
    assert not is_alive(pid)


async def test_a_worker_that_answers_nothing_is_killed_and_the_next_one_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(unanswered, "LOOK_S", 0.02)
        client = TierClient(command(tmp_path))
        client.start()
        await client.wait_ready(READY_TIMEOUT_S)
        pid = stop(client)
        with pytest.raises(TierUnavailable):
            async with asyncio.timeout(READY_TIMEOUT_S):
                await client.get("a")
    await client.wait_ready(READY_TIMEOUT_S)
    await client.put("a", b"1")
    assert client.worker_pid != pid
    assert "tier worker does not answer, killed" in caplog.messages
    await client.close()


async def test_a_worker_that_takes_long_for_one_request_is_not_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unanswered, "LOOK_S", 0.05)
    client = TierClient(command(tmp_path))
    client.start()
    await client.wait_ready(READY_TIMEOUT_S)
    pid, pipe = client.worker_pid, tmp_path / "pipe"
    os.mkfifo(pipe)
    putting = asyncio.create_task(client.put_file("b", pipe))
    await asyncio.sleep(0.05 * 3 * unanswered.SILENT_LOOKS_MAX)
    assert not putting.done()
    os.close(await asyncio.to_thread(os.open, pipe, os.O_WRONLY))
    await putting
    assert (client.worker_pid, client.restart_count) == (pid, 0)
    await client.close()


async def test_an_idle_worker_is_not_asked_for_anything(
    client: TierClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unanswered, "LOOK_S", 0.01)
    pid = stop(client)
    await asyncio.sleep(0.01 * 3 * unanswered.SILENT_LOOKS_MAX)
    os.kill(pid, signal.SIGCONT)
    assert await client.get("a") == b"1"
    assert client.worker_pid == pid


async def test_an_answer_that_cannot_be_understood_fails_its_request() -> None:
    requests = unanswered.UnansweredRequests()
    here, there = socket.socketpair()
    _, writer = await asyncio.open_connection(sock=here)
    asking = asyncio.create_task(requests.ask(writer, unanswered.StatusRequest()))
    await asyncio.sleep(0)
    with pytest.raises(KeyError):
        requests.take({"id": 0, "neither": "result nor error"})
    requests.fail_all("the worker ended")
    with pytest.raises(TidelogError, match="the worker ended"):
        await asking
    assert len(requests) == 0
    writer.close()
    await writer.wait_closed()
    there.close()
