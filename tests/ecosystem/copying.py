"""A client library in a program of ours that produces numbers, and copies topics exactly once.

produce ADDRESS TOPIC         sends the lines of its input by an idempotent producer, the nth to
                              partition n % 3; ends when all are acknowledged
copy ADDRESS FROM TO GROUP    a member of the group that copies in transactions, for ever
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.ecosystem.counting import SECONDS_MAX, committed
from tests.support.node_process import NodeProcess
from tests.support.waiting import eventually

PARTITIONS = 3


@dataclass(frozen=True, slots=True)
class CopyClient:
    """The program's command, and its log."""

    command: tuple[str, ...]
    log: Path
    environment: Mapping[str, str] = field(default_factory=dict)

    @contextmanager
    def running(self, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
        """Run the program; it is killed at the end."""
        with (
            self.log.open("ab") as log,
            subprocess.Popen(
                [*self.command, *arguments],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env={**os.environ, **self.environment},
            ) as process,
        ):
            try:
                yield process
            finally:
                process.kill()

    def send(self, address: str, topic: str, sent: range) -> None:
        """Have the program produce the numbers to the end."""
        with self.running("produce", address, topic) as producer:
            _write(producer, sent)
            self.wait_for_end(producer)

    def wait_for_end(self, producer: subprocess.Popen[bytes]) -> None:
        """End the input of a producer, and wait until all is acknowledged."""
        assert producer.stdin is not None
        producer.stdin.close()
        assert producer.wait(SECONDS_MAX) == 0, self.told()

    def told(self) -> str:
        """Return the end of the log."""
        return self.log.read_text(errors="replace")[-3000:]


def numbers(address: str, topic: str) -> list[list[int]]:
    """Return the committed numbers of each partition of a topic, in their order."""
    found: list[list[int]] = [[] for _ in range(PARTITIONS)]
    for message in committed(address, topic):
        partition = message.partition()
        assert partition is not None
        found[partition].append(int(message.value() or b""))
    return found


def create_topics(node: NodeProcess, *names: str) -> None:
    """Create topics of three partitions."""
    admin = AdminClient({"bootstrap.servers": node.address})
    for future in admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in names]).values():
        future.result(SECONDS_MAX)


def produce_while_the_node_is_killed(client: CopyClient, node: NodeProcess, *, count: int) -> None:
    """Have the client produce, kill the node in the middle; each number is there once, in order."""
    create_topics(node, "numbers")

    def there() -> int:
        return sum(map(len, numbers(node.address, "numbers")))

    third = count // 3
    with client.running("produce", node.address, "numbers") as producer:
        _write(producer, range(2 * third))
        eventually(lambda: there() > 0, client.told, SECONDS_MAX)
        node.kill()
        node.start()
        _write(producer, range(2 * third, count))
        client.wait_for_end(producer)
    expected = [list(range(partition, count, PARTITIONS)) for partition in range(PARTITIONS)]
    assert numbers(node.address, "numbers") == expected


def copy_while_both_are_killed(
    client: CopyClient, node: NodeProcess, *, count: int, may_end: bool = False
) -> None:
    """Have the client copy; kill it, then the node. Each number is copied once.

    ``may_end`` is for a client that ends when it has lost the node, and is started again.
    """
    create_topics(node, "from", "to")
    third = count // 3

    def copied() -> int:
        return sum(map(len, numbers(node.address, "to")))

    def told() -> str:
        return f"{copied()} of {count} are copied: {client.told()}"

    arguments = ("copy", node.address, "from", "to", "copiers")
    client.send(node.address, "from", range(third))
    with client.running(*arguments) as copier:
        eventually(lambda: copied() > 0, told, SECONDS_MAX)
        copier.kill()
    client.send(node.address, "from", range(third, 2 * third))
    with client.running(*arguments) as copier:
        eventually(lambda: copied() > third, told, SECONDS_MAX)
        node.kill()
        node.start()
        client.send(node.address, "from", range(2 * third, count))
        _wait(lambda: copied() >= count, copier, told, may_end=may_end)
    if copied() < count:
        with client.running(*arguments):
            eventually(lambda: copied() >= count, told, SECONDS_MAX)
    found = numbers(node.address, "to")
    assert sorted(number for partition in found for number in partition) == list(range(count))


def _wait(
    is_over: Callable[[], bool],
    copier: subprocess.Popen[bytes],
    told: Callable[[], str],
    *,
    may_end: bool,
) -> None:
    def has_ended() -> bool:
        return copier.poll() is not None

    eventually(lambda: has_ended() or is_over(), told, SECONDS_MAX)
    assert may_end or not has_ended(), told()


def _write(producer: subprocess.Popen[bytes], sent: range) -> None:
    assert producer.stdin is not None
    producer.stdin.write("".join(f"{number}\n" for number in sent).encode())
    producer.stdin.flush()
