"""Another process has a running cluster start or stop nodes."""

from __future__ import annotations

import asyncio
import json
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tidelog_core.errors import BrokerNotAvailable, InvalidRequest
from tidelog_node.local_cluster.cluster_size import SOCKET, Said, SizeServer, ask_for_nodes

SECONDS_MAX = 30.0


class Numbers:
    """A cluster whose nodes are numbers; node 9 does not start."""

    def __init__(self) -> None:
        self.running = [1]
        self.at_once = 0

    async def resize(self, count: int, *, force: bool) -> AsyncIterator[tuple[int, bool]]:
        if count == 0 and not force:
            raise InvalidRequest("only nodes that would leave have t-0")
        self.at_once += 1
        assert self.at_once == 1
        try:
            while len(self.running) != count:
                await asyncio.sleep(0)
                joins = len(self.running) < count
                number = len(self.running) + joins
                if number == 9:
                    raise BrokerNotAvailable("node 9 did not start")
                self.running = list(range(1, count + 1)) if not joins else [*self.running, number]
                yield number, joins
        finally:
            self.at_once -= 1


@asynccontextmanager
async def served(data_dir: Path) -> AsyncIterator[Numbers]:
    cluster = Numbers()
    server = SizeServer(data_dir, cluster)
    await server.start()
    try:
        yield cluster
    finally:
        await server.close()


async def ask(data_dir: Path, count: int, *, force: bool = False) -> tuple[Said, list[Said]]:
    said: list[Said] = []
    work = asyncio.to_thread(ask_for_nodes, data_dir, count, said.append, force=force)
    return await asyncio.wait_for(work, SECONDS_MAX), said


async def test_each_node_that_joins_or_leaves_is_named(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100) / ("e" * 100)  # longer than the address of a socket may be
    deep.mkdir(parents=True)
    async with served(deep) as cluster:
        answer, said = await ask(deep, 3)
        assert answer == {"nodes": 3}
        assert said == [{"node": 2, "is_running": True}, {"node": 3, "is_running": True}]
        assert cluster.running == [1, 2, 3]
        assert await ask(deep, 3) == ({"nodes": 3}, [])
        answer, said = await ask(deep, 2)
        assert said == [{"node": 3, "is_running": False}]
        assert stat.S_IMODE((deep / SOCKET).stat().st_mode) == 0o600
    assert not (deep / SOCKET).exists()


async def test_a_node_that_does_not_start_is_an_error_after_those_that_did(tmp_path: Path) -> None:
    async with served(tmp_path) as cluster:
        answer, said = await ask(tmp_path, 12)
        assert answer == {"error": "node 9 did not start"}
        assert [one["node"] for one in said] == list(range(2, 9))
        assert cluster.running[-1] == 8


async def test_what_would_have_partitions_offline_is_done_by_force(tmp_path: Path) -> None:
    async with served(tmp_path) as cluster:
        refused = {"error": "only nodes that would leave have t-0"}
        assert await ask(tmp_path, 0) == (refused, [])
        assert cluster.running == [1]
        assert await ask(tmp_path, 0, force=True) == (
            {"nodes": 0},
            [{"node": 1, "is_running": False}],
        )


async def test_requests_take_turns(tmp_path: Path) -> None:
    async with served(tmp_path) as cluster:
        await asyncio.gather(*[ask(tmp_path, count) for count in (4, 2, 5, 3)])
        assert len(cluster.running) in {2, 3, 4, 5}


@pytest.mark.parametrize(
    "request_line",
    [
        b"\n",
        b"{}\n",
        b"nonsense\n",
        b'{"nodes": true}\n',
        b'{"nodes": "3"}\n',
        b"[" * 5_000,
        b'{"nodes": 2, "force": 1}\n',
    ],
    ids=["empty", "no number", "no JSON", "a truth", "a text", "too long", "no truth"],
)
async def test_what_is_no_request_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request_line: bytes
) -> None:
    monkeypatch.chdir(tmp_path)
    async with served(tmp_path) as cluster:
        reader, writer = await asyncio.open_unix_connection(SOCKET)
        writer.write(request_line)
        answer = json.loads(await asyncio.wait_for(reader.readline(), SECONDS_MAX))
        writer.close()
        assert answer == {"error": 'a request is {"nodes": N}'}
        assert cluster.running == [1]


async def test_a_second_parent_leaves_the_socket_of_the_first_alone(tmp_path: Path) -> None:
    async with served(tmp_path) as cluster:
        async with served(tmp_path):
            pass
        await ask(tmp_path, 2)
        assert cluster.running == [1, 2]


async def test_a_socket_that_a_killed_parent_has_left_is_replaced(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        ask_for_nodes(tmp_path, 2, print)
    left = SizeServer(tmp_path, Numbers())
    await left.start()
    assert left._server is not None
    left._server.close()  # as if it were killed: the name stays
    with pytest.raises(ConnectionRefusedError):
        ask_for_nodes(tmp_path, 2, print)
    async with served(tmp_path) as cluster:
        await ask(tmp_path, 2)
        assert cluster.running == [1, 2]
