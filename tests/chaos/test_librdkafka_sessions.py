"""Sessions in processes of their own: what they tell, and what is made of one that hangs."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

from tests.chaos.history import History, Outcome, PartitionKey
from tests.chaos.librdkafka.processes import SessionProcesses
from tests.chaos.scene import Progress, Scene
from tests.support.node_process import NodeProcess
from tests.support.waiting import eventually_async

NAME = PartitionKey("t", 0)
# Speaks as a session does. The first asks for a record and a transaction, and then holds the
# interpreter's lock for good; the second tells how both, and what it has read, came out.
SESSIONS = """
import ctypes, faulthandler, os, signal, sys
from tests.chaos.attempts import Attempt
from tests.chaos.history import Outcome, PartitionKey, Poll
from tests.chaos.librdkafka.link import Reached, open_link, own_end, read_order
from tests.chaos.scene import Numbers, complete, invoke
faulthandler.register(signal.SIGUSR1, all_threads=True)
link, lines = own_end()
order = read_order(lines)
scene = open_link(order, link, lines)
(name,) = scene.partitions
numbers = Numbers(order.session, scene.chance(order.session))
write = invoke(scene, order.session, name, numbers, acks=-1, once=True, is_ordered=True)
link.under_way(write)
attempt = Attempt.begin(scene, order.session, 0)
attempt.record(name, order.settings["text"])
link.under_way(attempt.told(Outcome.INFO, "left"))
link.at("close")
while order.session.endswith(".0"):
    ctypes.PyDLL(None).sleep(1000)
complete(scene, write, Outcome.OK, offset=5)
attempt.end(Outcome.OK)
scene.history.add(Poll(order.session, "g", scene.clock_s(), ((*name, 6, "v"),)))
Reached(link).reach(PartitionKey("other", 1), 9)
while scene.is_reading:
    link.at("poll")
os._exit(0)
"""


def scene_of(bootstrap: str = "localhost:1") -> Scene:
    scene = Scene(bootstrap, 1, History(), time.monotonic())
    scene.partitions.append(NAME)
    return scene


async def test_a_session_that_hangs_is_killed_and_the_next_one_begins(tmp_path: Path) -> None:
    scene, progress = scene_of(), Progress()
    sessions = SessionProcesses(
        scene,
        "k",
        "any",
        log_path=tmp_path / "k.log",
        is_wanted=lambda: scene.is_reading,
        progress=progress,
        command=(sys.executable, "-c", SESSIONS),
        silent_s_max=2,
        text="moved",
    )

    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        tasks.create_task(sessions.run())
        await eventually_async(lambda: not progress.missing({PartitionKey("other", 1): 9}))
        scene.is_reading = False
    history = scene.history
    assert [(one.session, one.outcome) for one in history.transactions] == [
        ("k.0", Outcome.INFO),
        ("k.1", Outcome.OK),
    ]
    assert [(one.session, one.outcome, one.offset) for one in history.writes] == [
        ("k.1", Outcome.OK, 5)
    ]
    assert [one.session for one in scene.open_writes.values()] == ["k.0"]
    assert not progress.missing({NAME: 7})
    (note,) = history.notes
    assert note.about == "k.0"
    assert "stands still in close" in note.text
    assert "Thread 0x" in note.text


async def test_sessions_of_librdkafka_write_read_and_transact(tmp_path: Path) -> None:
    """Each role once, against one node, and each ends when it is not wanted any more."""
    with NodeProcess(tmp_path / "node", config={"auto.create.topics.enable": "true"}) as node:
        scene = scene_of(node.address)
        scene.transactional.append(PartitionKey("moved", 0))
        scene.piped.append(PartitionKey("piped", 0))
        group, piped = Progress(), Progress()

        def client(name: str, role: str, progress: Progress | None = None, **settings: object):
            return SessionProcesses(
                scene,
                name,
                role,
                log_path=tmp_path / f"{name}.log",
                is_wanted=lambda: scene.is_writing if progress is None else scene.is_reading,
                progress=progress,
                **settings,
            ).run()

        async def run() -> None:
            async with asyncio.timeout(100), asyncio.TaskGroup() as tasks:
                tasks.create_task(client("k", "produce", rate_per_s=200))
                tasks.create_task(client("kt", "write_transactions", rate_per_s=200))
                tasks.create_task(client("kx", "process", piped, source="t"))
                tasks.create_task(client("km", "consume", group, group="g"))
                await eventually_async(
                    lambda: (
                        not group.missing({NAME: 10})
                        and not piped.missing({NAME: 10})
                        and any(
                            one.session.startswith("kt") and one.outcome is Outcome.OK
                            for one in scene.history.transactions
                        )
                    )
                )
                scene.is_writing = scene.is_reading = False

        await run()
    assert sum(write.outcome is Outcome.OK for write in scene.history.writes) >= 10
