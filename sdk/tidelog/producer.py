"""``Producer`` writes records in batches, by default each exactly once and in order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from tidelog.cluster import Cluster
from tidelog.options import (
    ClientSettings,
    CompressionName,
    Partitioner,
    PartitionerName,
    ProducerOptions,
    check,
    client_options,
    parse_acks,
    parse_compression,
)
from tidelog.partitioners import partitioner_factory
from tidelog.producing.sync_producer import SyncProducer
from tidelog.producing.writer import RecordWriter


class Producer(RecordWriter):
    """Writes records to topics.

    Use ``async with Producer("localhost:9092") as producer:``, or ``start()`` and ``close()``.
    One producer serves all tasks of a program; make all calls from one event loop.
    ``sync()`` returns a producer for programs without one.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
        *,
        acks: int | str = "all",
        enable_idempotence: bool | None = None,
        compression: CompressionName = "none",
        compression_level: int | None = None,
        partitioner: PartitionerName | Partitioner = "murmur2",
        batch_size_bytes: int = 64 * 1024,
        linger_ms: float = 5,
        request_size_bytes_max: int = 1024 * 1024,
        buffer_memory_bytes: int = 32 * 1024 * 1024,
        max_block_ms: int = 60_000,
        max_in_flight: int = 5,
        transactional_id: str | None = None,
        transaction_timeout_ms: int = 60_000,
        retries: int = 2**31 - 1,
        delivery_timeout_ms: int = 120_000,
        **settings: Unpack[ClientSettings],
    ) -> None:
        """Check the options (see ``tidelog.options``); ``start()`` connects.

        ``enable_idempotence`` is on unless ``acks``, ``retries`` or ``max_in_flight`` exclude it.
        With a ``transactional_id``, records can be sent only within ``transaction()``; a new
        producer with the same id fences the earlier ones. Raises ``InvalidConfig`` with all
        problems.
        """
        acks_number = parse_acks(acks)
        if enable_idempotence is None:
            enable_idempotence = acks_number == -1 and retries != 0 and max_in_flight in range(6)
        client = client_options(bootstrap_servers, settings, Producer)
        options = ProducerOptions(
            acks=acks_number,
            is_idempotent=enable_idempotence,
            compression=parse_compression(compression),
            compression_level=compression_level,
            batch_size_bytes=batch_size_bytes,
            linger_ms=linger_ms,
            request_size_bytes_max=request_size_bytes_max,
            buffer_memory_bytes=buffer_memory_bytes,
            max_block_ms=max_block_ms,
            max_in_flight=max_in_flight,
            retries=retries,
            delivery_timeout_ms=delivery_timeout_ms,
            request_timeout_ms=client.request_timeout_ms,
            retry_backoff_ms=client.retry_backoff_ms,
            retry_backoff_max_ms=client.retry_backoff_max_ms,
            transactional_id=transactional_id,
            transaction_timeout_ms=transaction_timeout_ms,
        )
        check(client, options)
        super().__init__(Cluster(client), options, partitioner_factory(partitioner))

    def sync(self) -> SyncProducer:
        """Return a synchronous client around this producer; use only that one afterwards."""
        return SyncProducer(self)
