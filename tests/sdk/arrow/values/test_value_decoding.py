"""The thread of a consumer's decoder: a poll that is cancelled leaves it to nobody else."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress

import pyarrow as pa
import pytest
from tidelog import SchemaDecoder
from tidelog.arrow.columns import arrow_schema
from tidelog.arrow.schemas.found_schemas import FoundSchema
from tidelog.consuming.value_decoding import ValueDecoding
from tidelog_core.errors import InvalidRecord
from tidelog_core.schemas.model import SchemaType

SCHEMA = FoundSchema(
    SchemaType.AVRO, '{"type":"record","name":"R","fields":[{"name":"id","type":"int"}]}', ()
)
SECONDS_MAX = 60.0


class SlowSchemas:
    """Hands out schemas once it is let, and counts the threads that wait for one."""

    def __init__(self) -> None:
        self.may_answer = threading.Event()
        self.asked = threading.Semaphore(0)
        self.ask_count = 0
        self.thread_count = 0
        self.thread_count_max = 0
        self._lock = threading.Lock()

    def latest(self, subject: str) -> FoundSchema:
        return SCHEMA

    def by_id(self, schema_id: int) -> FoundSchema | None:
        with self._lock:
            self.ask_count += 1
            self.thread_count += 1
            self.thread_count_max = max(self.thread_count_max, self.thread_count)
        self.asked.release()
        assert self.may_answer.wait(SECONDS_MAX)
        with self._lock:
            self.thread_count -= 1
        return SCHEMA


def batch_of(*schema_ids: int, first_offset: int = 0) -> pa.RecordBatch:
    rows = [
        {
            "value": b"\0" + schema_id.to_bytes(4, "big") + b"\x02",
            "topic": "t",
            "partition": 0,
            "offset": first_offset + number,
        }
        for number, schema_id in enumerate(schema_ids)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=arrow_schema(include_headers=False))


async def cancelled_while_asked(
    decoding: ValueDecoding, schemas: SlowSchemas, batches: list[pa.RecordBatch], of: SchemaDecoder
) -> None:
    poll = asyncio.create_task(decoding.decode(batches, of, size_bytes_max=1 << 30))
    assert await asyncio.to_thread(schemas.asked.acquire, timeout=SECONDS_MAX)
    poll.cancel()
    with suppress(asyncio.CancelledError):
        await poll


async def test_the_next_poll_waits_for_the_thread_of_a_cancelled_one() -> None:
    schemas = SlowSchemas()
    decoder, decoding = SchemaDecoder(schemas, "s"), ValueDecoding()
    await cancelled_while_asked(decoding, schemas, [batch_of(1)], decoder)
    second = asyncio.create_task(decoding.decode([batch_of(2)], decoder, size_bytes_max=1 << 30))
    for _ in range(50):  # It may do whatever it does meanwhile.
        await asyncio.sleep(0)
    schemas.may_answer.set()
    found, left = await second
    assert [one.column("value").to_pylist() for one in found] == [[{"id": 1}]]
    assert list(left) == []
    assert schemas.thread_count_max == 1


async def test_a_cancelled_poll_decodes_no_further_batches() -> None:
    schemas = SlowSchemas()
    decoder, decoding = SchemaDecoder(schemas, "s"), ValueDecoding()
    batches = [batch_of(number, first_offset=number) for number in range(1, 5)]
    await cancelled_while_asked(decoding, schemas, batches, decoder)
    schemas.may_answer.set()
    await decoding.wait()
    assert schemas.ask_count == 1, "the rest was not decoded"


async def test_a_poll_that_is_cancelled_while_it_waits_decodes_nothing() -> None:
    schemas = SlowSchemas()
    decoder, decoding = SchemaDecoder(schemas, "s"), ValueDecoding()
    await cancelled_while_asked(decoding, schemas, [batch_of(1)], decoder)
    second = asyncio.create_task(decoding.decode([batch_of(2)], decoder, size_bytes_max=1 << 30))
    await asyncio.sleep(0)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    schemas.may_answer.set()
    await decoding.wait()
    assert schemas.ask_count == 1


async def test_what_a_cancelled_poll_raises_is_nobodys_error() -> None:
    """An error that nobody asks for would be logged when it is collected."""
    schemas = SlowSchemas()
    decoder, decoding = SchemaDecoder(schemas, "s"), ValueDecoding()
    bad = batch_of(1, 1).set_column(
        1, "value", pa.array([b"\0\0\0\0\1\x02", b"no schema"], pa.binary())
    )
    await cancelled_while_asked(decoding, schemas, [bad], decoder)
    schemas.may_answer.set()
    await decoding.wait()
    with pytest.raises(InvalidRecord):
        await decoding.decode([bad], decoder, size_bytes_max=1 << 30)
