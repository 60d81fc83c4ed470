"""``Consumer`` reads records, alone or as a member of a group."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Unpack

from tidelog.cluster import Cluster
from tidelog.consuming.reader import RecordReader
from tidelog.consuming.sync_consumer import SyncConsumer
from tidelog.options import (
    DEFAULT_ASSIGNOR,
    DEFAULT_HEARTBEAT_INTERVAL_MS,
    DEFAULT_SESSION_TIMEOUT_MS,
    AssignorName,
    ClientSettings,
    ConsumerOptions,
    GroupProtocol,
    IsolationLevel,
    ResetPolicy,
    check,
    client_options,
)
from tidelog.wire.frame_buffers import KEPT_BYTES_MAX


class Consumer(RecordReader):
    """Reads records of topics (as a member of a group) or of partitions assigned by hand.

    ::

        async with Consumer("localhost:9092", group_id="billing") as consumer:
            consumer.subscribe(["orders"])
            async for record in consumer:
                ...

    Delivery is at least once: with ``enable_auto_commit``, offsets of processed records are
    committed every ``auto_commit_interval_ms``, before partitions are revoked, and by
    ``close()``. A record counts as processed once the program asks for the next one or polls
    again; leaving the block by an exception does not commit the current record. Make all
    calls from one event loop; ``sync()`` returns a client for programs without one.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
        *,
        topics: str | Iterable[str] | None = None,
        group_id: str | None = None,
        group_instance_id: str | None = None,
        group_protocol: GroupProtocol = "classic",
        group_remote_assignor: str | None = None,
        assignors: AssignorName | Sequence[AssignorName] = DEFAULT_ASSIGNOR,
        auto_offset_reset: ResetPolicy = "latest",
        enable_auto_commit: bool = True,
        auto_commit_interval_ms: int = 5_000,
        isolation_level: IsolationLevel = "read_uncommitted",
        fetch_min_bytes: int = 1,
        fetch_max_wait_ms: int = 500,
        fetch_max_bytes: int = 50 * 1024 * 1024,
        max_partition_fetch_bytes: int = 1024 * 1024,
        prefetch_bytes_max: int = 64 * 1024 * 1024,
        max_poll_records: int = 500,
        max_poll_interval_ms: int = 300_000,
        session_timeout_ms: int = DEFAULT_SESSION_TIMEOUT_MS,
        heartbeat_interval_ms: int = DEFAULT_HEARTBEAT_INTERVAL_MS,
        allow_auto_create_topics: bool = False,
        check_crcs: bool = True,
        rack: str | None = None,
        **settings: Unpack[ClientSettings],
    ) -> None:
        """Check the options (see ``tidelog.options``); ``start()`` connects.

        ``topics`` is the same as ``subscribe(topics)``. Raises ``InvalidConfig`` with all
        problems.
        """
        client = client_options(bootstrap_servers, settings, Consumer)
        options = ConsumerOptions(
            group_id=group_id,
            group_instance_id=group_instance_id,
            group_protocol=group_protocol,
            group_remote_assignor=group_remote_assignor,
            assignors=(assignors,) if isinstance(assignors, str) else tuple(assignors),
            auto_offset_reset=auto_offset_reset,
            enable_auto_commit=enable_auto_commit,
            auto_commit_interval_ms=auto_commit_interval_ms,
            isolation_level=isolation_level,
            fetch_min_bytes=fetch_min_bytes,
            fetch_max_wait_ms=fetch_max_wait_ms,
            fetch_max_bytes=fetch_max_bytes,
            max_partition_fetch_bytes=max_partition_fetch_bytes,
            prefetch_bytes_max=prefetch_bytes_max,
            max_poll_records=max_poll_records,
            max_poll_interval_ms=max_poll_interval_ms,
            session_timeout_ms=session_timeout_ms,
            heartbeat_interval_ms=heartbeat_interval_ms,
            allow_auto_create_topics=allow_auto_create_topics,
            check_crcs=check_crcs,
            rack=rack,
        )
        check(client, options)
        frame_bytes_max = min(KEPT_BYTES_MAX, prefetch_bytes_max)
        super().__init__(Cluster(client, frame_bytes_max=frame_bytes_max), options)
        if topics is not None:
            self.subscribe(topics)

    def sync(self) -> SyncConsumer:
        """Return a synchronous client around this consumer; use only that one afterwards."""
        return SyncConsumer(self)
