"""Answers whose batches go back: a damaged or hostile node may not have records read twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest
from tidelog import Consumer, Producer
from tidelog.consuming.batch_runs import next_run
from tidelog.consuming.fetched import Chunk
from tidelog.consuming.positions import PartitionState
from tidelog.errors import CorruptRecordBatch, TidelogError
from tidelog_core.model import TopicPartition
from tidelog_core.records.header import HEADER_SIZE, check_crc, pack_batch, parse_header, patch

from tests.support.batches import batch_of
from tests.support.node_process import NodeProcess
from tests.support.tcp_proxy import HOST, ProxiedConnection, TcpProxy
from tools.ports import free_port

LAST = b"the last one"
TP = TopicPartition("t", 3)
BACK = "t-3: base offset 3 is below offset 7, where the batch before it ends"


def numbers(base: int, count: int) -> bytes:
    """Return a batch whose record at offset n has the value ``n``."""
    values = [b"%d" % offset for offset in range(base, base + count)]
    return batch_of(*values, key=b"k", timestamp_ms=1000, base_offset=base)


def state_of(*batches: bytes, position: int = 0) -> PartitionState:
    state = PartitionState(TP)
    state.jump(position)
    state.chunks.append(Chunk(TP, b"".join(batches)))
    return state


@pytest.mark.parametrize("following", [(), ((7, 2),)])
def test_a_batch_that_goes_back_is_an_error_behind_those_before_it(
    following: tuple[tuple[int, int], ...],
) -> None:
    rest = [numbers(*one) for one in following]
    state = state_of(numbers(2, 3), numbers(5, 2), numbers(3, 2), *rest, position=2)
    found: list[int] = []
    for _ in range(2):
        assert state.next_run()
        found += [one.offset for one in state.take(100)]
    assert found == [2, 3, 4, 5, 6]
    with pytest.raises(CorruptRecordBatch, match=BACK):
        state.next_run()
    assert state.position == state.fetch_position == 7, "it is fetched again from there"
    assert not state.next_run()


def test_the_same_batch_twice_goes_back() -> None:
    chunk = Chunk(TP, numbers(2, 5) + numbers(2, 5))
    assert len(chunk.next_batch(0)[0]) == 5
    for _ in range(2):
        assert chunk
        with pytest.raises(CorruptRecordBatch, match="base offset 2 is below offset 7"):
            chunk.next_batch(7)


def test_batches_for_arrow_go_back_as_little() -> None:
    chunk = Chunk(TP, numbers(2, 3) + numbers(5, 2) + numbers(3, 2))
    assert next_run(chunk, 1 << 20).next_offset == 7
    assert chunk
    with pytest.raises(CorruptRecordBatch, match=BACK):
        next_run(chunk, 1 << 20)


def test_a_base_offset_below_zero_is_malformed() -> None:
    state = state_of(numbers(2, 3), b"\xff" * 8 + numbers(5, 2)[8:], position=2)
    assert state.next_run()
    assert len(state.take(100)) == 3
    with pytest.raises(CorruptRecordBatch, match="t-3: the header of the batch at offset -1 is"):
        state.next_run()


def test_gaps_and_a_first_batch_below_the_position_are_no_going_back() -> None:
    """Compaction leaves gaps, and a node sends whole batches."""
    state = state_of(numbers(2, 3), numbers(9, 2), position=4)
    found: list[int] = []
    while state.next_run():
        found += [one.offset for one in state.take(100)]
    assert found == [4, 9, 10]


def test_a_record_beyond_the_end_of_its_batch_is_an_error() -> None:
    """The position would be below it afterwards, and it would be read again and again."""
    data = numbers(5, 3)
    header = parse_header(data)._replace(last_offset_delta=0)
    shortened = pack_batch(header, data[HEADER_SIZE:])
    with pytest.raises(CorruptRecordBatch, match=r"t-3: .* a record at offset 7, .* at offset 6"):
        Chunk(TP, shortened).next_batch(5)


class Altering(TcpProxy):
    """Forwards to a node, and gives a batch of its answers another base offset.

    No CRC covers that.
    """

    def __init__(self, target_port: int, *, port: int) -> None:
        super().__init__((HOST, target_port), port=port)
        self.base_offset: int | None = None  # of the batch with ``LAST``

    async def relay(self, connection: ProxiedConnection) -> None:
        """Relay frame after frame."""
        client, node = connection.client, await connection.dial()
        await asyncio.gather(
            self._pump(client[0], node[1], lambda _: None),
            self._pump(node[0], client[1], self._alter),
        )

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        alter: Callable[[bytearray], None],
    ) -> None:
        while True:
            size = await reader.readexactly(4)
            frame = bytearray(await reader.readexactly(int.from_bytes(size, "big")))
            alter(frame)
            writer.write(size + frame)
            await writer.drain()

    def _alter(self, frame: bytearray) -> None:
        at = frame.find(LAST)
        if at < 0 or self.base_offset is None:
            return
        for position in range(at - HEADER_SIZE, 0, -1):
            with suppress(TidelogError):
                header = parse_header(frame, position)
                check_crc(frame, position, header)
                epoch = header.partition_leader_epoch
                patch(frame, position, base_offset=self.base_offset, leader_epoch=epoch)
                return


@pytest.fixture
async def proxy(tmp_path: Path) -> AsyncIterator[Altering]:
    """A node of this test's own behind a proxy."""
    port = free_port()
    with NodeProcess(tmp_path / "node", arguments=("--advertised-port", str(port))) as node:
        async with Altering(node.port, port=port) as running:
            yield running


async def polled(consumer: Consumer) -> list[bytes | None]:
    return [one.value for one in await consumer.poll(timeout_ms=10_000)]


async def polled_as_arrow(consumer: Consumer) -> list[bytes | None]:
    batches = await consumer.poll_arrow(timeout_ms=10_000)
    return [value for one in batches for value in one.column("value").to_pylist()]


@pytest.mark.parametrize("poll", [polled, polled_as_arrow])
async def test_a_consumer_says_what_goes_back_and_reads_on_once_it_is_right(
    proxy: Altering, poll: Callable[[Consumer], Awaitable[list[bytes | None]]]
) -> None:
    address, values = f"{HOST}:{proxy.port}", [b"first", b"second", LAST]
    async with Producer(address) as producer:
        for value in values:
            await producer.send_and_wait("t", value, partition=0)
    proxy.base_offset = 0
    async with Consumer(address, auto_offset_reset="earliest") as consumer:
        consumer.assign([("t", 0)])
        found = []
        while len(found) < 2:
            found += await poll(consumer)
        assert found == values[:2]
        with pytest.raises(CorruptRecordBatch, match="t-0: base offset 0 is below offset 2"):
            await poll(consumer)
        for _ in range(2):
            with pytest.raises(CorruptRecordBatch, match=r"t-0: a fetch from offset 2 .* offset 1"):
                await poll(consumer)
        assert await consumer.position(("t", 0)) == 2
        proxy.base_offset = None
        while len(found) < len(values):
            with suppress(CorruptRecordBatch):  # An answer that was altered may be on its way.
                found += await poll(consumer)
        assert found == values
