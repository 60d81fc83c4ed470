"""Between a run and a session of librdkafka in a process of its own, as lines of JSON.

To the session: first its ``Order``, then the state of the scene, as often as it changes.
From the session: what happens, each line a list with its kind first:

    ["event", "Write", {...}]        an event of the history
    ["under way", "Write", {...}]    the same before there is an outcome
    ["reached", topic, partition, offset]     everything below the offset is done
    ["at", "commit_transaction"]     what is called next, or that it goes on
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from tests.chaos.history import Event, History, PartitionKey, Transaction, Write, encode
from tests.chaos.scene import Progress, Scene

AT_SECONDS = 1.0  # between two lines that say that it goes on


@dataclass(frozen=True, slots=True)
class Order:
    """What a session is to do."""

    role: str
    client: str
    session: str
    bootstrap: str
    seed: int
    started_s: float  # of the run, by the machine's monotonic clock
    settings: dict[str, Any]  # of the role


def encode_state(scene: Scene) -> bytes:
    """Return the line that tells a session of the scene as it is now."""
    state = {
        "partitions": scene.partitions,
        "transactional": scene.transactional,
        "piped": scene.piped,
        "is_writing": scene.is_writing,
        "is_reading": scene.is_reading,
    }
    return json.dumps(state).encode() + b"\n"


def take_state(scene: Scene, line: bytes) -> None:
    """Bring a session's scene to what the line says."""
    state = json.loads(line)
    for name in ("partitions", "transactional", "piped"):
        setattr(scene, name, [PartitionKey(*item) for item in state[name]])
    scene.is_writing, scene.is_reading = state["is_writing"], state["is_reading"]


@dataclass(slots=True)
class Link(History):
    """The session's end: what is added to this history is told to the run, and not kept."""

    out: int = 1  # file descriptor
    _told_at_s: float = 0.0
    _place: str = ""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, event: Event) -> None:
        """Tell of an event."""
        self._send("event", encode(event))

    def under_way(self, event: Write | Transaction) -> None:
        """Tell what is about to be asked for, in case that nothing more is ever heard of it."""
        self._send("under way", encode(event))

    def reached(self, name: PartitionKey, offset: int) -> None:
        """Tell that everything below the offset is done."""
        self._line(["reached", *name, offset])

    def at(self, place: str) -> None:
        """Tell what is called next: where it stands still, if it does."""
        now_s = time.monotonic()
        if place != self._place or now_s - self._told_at_s > AT_SECONDS:
            self._place, self._told_at_s = place, now_s
            self._line(["at", place])

    def _send(self, kind: str, event: str) -> None:
        self._line([kind, *json.loads(event)])

    def _line(self, message: list[Any]) -> None:
        data = json.dumps(message).encode() + b"\n"
        with self._lock:
            while data:
                data = data[os.write(self.out, data) :]


class Reached(Progress):
    """A session's part of the progress that it shares with others: it is told to the run."""

    def __init__(self, link: Link) -> None:
        super().__init__()
        self._link = link

    def reach(self, name: PartitionKey, next_offset: int) -> None:
        """Tell that everything below the offset is done."""
        self._link.reached(name, next_offset)


def open_link(order: Order, link: Link, lines: BinaryIO) -> Scene:
    """Return the session's scene, which goes on to follow the run's. Ends with the run."""
    scene = Scene(order.bootstrap, order.seed, link, order.started_s)
    take_state(scene, lines.readline())

    def follow() -> None:
        for line in lines:
            take_state(scene, line)
        os._exit(1)  # Nobody is there any more.

    threading.Thread(target=follow, name="scene", daemon=True).start()
    return scene


def read_order(lines: BinaryIO) -> Order:
    """Return the first line as what it is."""
    return Order(**json.loads(lines.readline()))


def encode_order(order: Order) -> bytes:
    """Return the first line."""
    return json.dumps(dataclasses.asdict(order)).encode() + b"\n"


def own_end() -> tuple[Link, BinaryIO]:
    """Return the link of this process, which is a session, and the lines that come to it."""
    return Link(out=sys.stdout.fileno()), sys.stdin.buffer
