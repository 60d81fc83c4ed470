"""The tier worker: the process of a node that does its object-store traffic.

A node starts ``tidelog_node.tier.worker_process`` with the arguments of ``WorkerCommand``. It
listens on a Unix socket and serves the requests of ``protocol``, so a backfill takes no processor
time from the node's event loop. Its only state is the cache, so killing it at any moment loses
nothing: the node starts another one and sends its requests again. With ``--until-stdin-ends`` it
ends with the process that started it. It also ends when another folder has taken the place of its
object store: the node checks the store before it uses the next worker. A node that leads partitions
of diskless topics has a second one for its chain, so that acks do not wait behind cold reads.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from tidelog_core.config import NodeConfig
from tidelog_core.errors import StorageError, TidelogError, TierUnavailable, WrongObjectStore
from tidelog_core.log_format import JSON, LOG_FORMATS, TEXT, configure_logging
from tidelog_core.objects.counted_store import CountedObjectStore
from tidelog_core.objects.location import open_object_store
from tidelog_core.objects.store import ObjectStore
from tidelog_core.tier.keys import topic_folder_of

from tidelog_node.processes.worker_version import require_same_version
from tidelog_node.tier.bandwidth import Bandwidth
from tidelog_node.tier.chunk_cache import ChunkCache
from tidelog_node.tier.lent_memory import map_shared
from tidelog_node.tier.protocol import (
    NICENESS,
    Fields,
    ForgetRequest,
    OnEvent,
    ProtocolError,
    ReadRequest,
    Request,
    StatusRequest,
    StoreRequest,
    UploadRequest,
    UploadResult,
    encode_message,
    error_to_fields,
    read_message,
    request_from_fields,
    upload_result_to_fields,
)
from tidelog_node.tier.range_check import check_range_bytes
from tidelog_node.tier.store_calls import call_store
from tidelog_node.tier.upload import upload_segment
from tidelog_node.tier.wal_messages import (
    WalBuildPutRequest,
    WalBuildRequest,
    WalDropRequest,
    WalIndexRequest,
    WalPutRequest,
    WalStoreRequest,
)
from tidelog_node.tier.wal_objects import WalObjects

logger = logging.getLogger(__name__)

THREAD_COUNT = 4
REQUESTS_MAX = 1024  # of one connection; further ones are refused
SOCKET_READ_SIZE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """The settings of a worker, from its command line."""

    socket: Path
    objects: str  # the URL of the object store
    cache_dir: Path
    cache_bytes: int
    fetch_concurrency: int
    upload_concurrency: int
    upload_bytes_per_second: int
    multipart_threshold: int
    ends_with_stdin: bool
    niceness: int
    wal_bytes: int  # of built objects of chains; one object of any size is kept
    memory_descriptor: int  # of the memory that the node shares; -1: none
    memory_bytes: int


class TierWorker:
    """Answers the requests of its node. For one event loop."""

    def __init__(self, objects: ObjectStore, settings: WorkerSettings) -> None:
        self.ended = asyncio.Event()  # set by a signal, by the node, or because the store is gone
        self._store = store = CountedObjectStore(
            objects, group_of=topic_folder_of, on_failed=self._on_failed
        )
        self._incarnation = uuid4().hex  # counters begin at 0 with another one
        self._executor = ThreadPoolExecutor(THREAD_COUNT, thread_name_prefix="tier")
        self._cache = ChunkCache(
            store,
            settings.cache_dir,
            size_bytes_max=settings.cache_bytes,
            fetch_concurrency=settings.fetch_concurrency,
            executor=self._executor,
            check=check_range_bytes,
        )
        self._memory = (
            memoryview(b"")
            if settings.memory_descriptor < 0
            else map_shared(settings.memory_descriptor, settings.memory_bytes)
        )
        self._bandwidth = Bandwidth(settings.upload_bytes_per_second)
        self._uploads = asyncio.Semaphore(settings.upload_concurrency)
        self._wal = WalObjects(store, built_bytes_max=settings.wal_bytes, executor=self._executor)
        self.upload_count = 0

    async def serve_connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Answer the connection's requests concurrently until it ends."""
        tasks: set[asyncio.Task[None]] = set()
        try:
            while (fields := await read_message(reader)) is not None:
                if len(tasks) >= REQUESTS_MAX:
                    too_many = TierUnavailable(f"more than {REQUESTS_MAX} requests are under way")
                    _send(writer, fields["id"], {"error": error_to_fields(too_many)})
                    continue
                task = asyncio.create_task(self._answer(fields, writer))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
        except ProtocolError as error:
            logger.error("connection broke the protocol", extra={"reason": str(error)})
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            writer.close()

    async def close(self) -> None:
        """Cancel read-ahead and release the store and the threads."""
        await self._cache.close()
        await self._store.close()
        self._executor.shutdown(wait=False, cancel_futures=True)

    async def _answer(self, fields: Fields, writer: asyncio.StreamWriter) -> None:
        answer: Fields
        data: bytes | None = None
        number = fields["id"]

        def send_event(event: Fields) -> None:
            _send(writer, number, {"event": event})

        try:
            result = await self._do(request_from_fields(fields), send_event)
            data = result.pop("data", None)
            answer = {"result": result}
        except TidelogError as error:
            answer = {"error": error_to_fields(error)}
        except Exception as error:
            logger.exception("request failed unexpectedly", extra={"op": fields.get("op")})
            answer = {"error": error_to_fields(StorageError(f"unexpected: {error!r}"))}
        _send(writer, number, answer, data)

    def _on_failed(self, error: TidelogError) -> None:
        if isinstance(error, WrongObjectStore) and not self.ended.is_set():
            self.ended.set()
            logger.error("object store was replaced, worker ends", extra={"reason": str(error)})

    async def _do(self, request: Request, send_event: OnEvent) -> Fields:
        match request:
            case ReadRequest(wanted, ahead):
                return {"path": str(await self._cache.fetch(wanted, ahead))}
            case UploadRequest():
                async with self._uploads:
                    result = await self._upload(request)
                self.upload_count += 1
                return upload_result_to_fields(result)
            case StoreRequest(method, arguments):
                found = await call_store(self._store, request, self._memory)
                if method == "delete":
                    # No reader will request it again: free the space for others.
                    self._cache.forget(arguments)
                return found
            case ForgetRequest(keys):
                self._cache.forget(keys)
                return {}
            case StatusRequest():
                return self._status()
            case (
                WalBuildRequest()
                | WalBuildPutRequest()
                | WalStoreRequest()
                | WalPutRequest()
                | WalDropRequest()
                | WalIndexRequest()
            ):
                return await self._wal.answer(request, send_event)

    def _status(self) -> Fields:
        cache, usage = self._cache, self._store.usage
        return {
            "incarnation": self._incarnation,
            "cache_size_bytes": cache.size_bytes,
            "cache_hit_count": cache.hit_count,
            "cache_miss_count": cache.miss_count,
            "get_count": cache.get_count,
            "upload_count": self.upload_count,
            "wal_built_bytes": self._wal.built_bytes,
            "sent_bytes": usage.sent_bytes,
            "received_bytes": usage.received_bytes,
            "requests": [[*key, count] for key, count in usage.requests.items()],
            "seconds": usage.seconds,
            "topics": [
                [folder, one.requests, one.sent_bytes, one.received_bytes]
                for folder, one in usage.by_group.items()
            ],
        }

    async def _upload(self, request: UploadRequest) -> UploadResult:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(self._bandwidth.take(request.source.size_bytes, now=loop.time()))
        result = await upload_segment(self._store, request, executor=self._executor)
        self._bandwidth.take(result.index_size_bytes, now=loop.time())  # the next one waits
        return result


def _send(
    writer: asyncio.StreamWriter, number: int, answer: Fields, data: bytes | None = None
) -> None:
    if not writer.is_closing():
        writer.write(encode_message({"id": number, **answer}, data))


async def run_worker(settings: WorkerSettings) -> None:
    """Serve until SIGTERM, SIGINT or, if enabled, the end of standard input."""
    store = open_object_store(
        settings.objects, may_be_new=True, multipart_threshold=settings.multipart_threshold
    )
    worker = TierWorker(store, settings)
    connections: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(worker.serve_connection(reader, writer))
        connections.add(task)
        task.add_done_callback(connections.discard)

    server = await asyncio.start_unix_server(
        accept, sock=_private_socket(settings.socket), limit=SOCKET_READ_SIZE_BYTES
    )
    ended = worker.ended
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    if settings.ends_with_stdin:
        loop.add_reader(sys.stdin.fileno(), _end_at_eof, ended)
    try:
        await ended.wait()
    finally:
        if settings.ends_with_stdin:
            loop.remove_reader(sys.stdin.fileno())
        server.close()
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)
        await worker.close()
        settings.socket.unlink(missing_ok=True)


def _private_socket(path: Path) -> socket.socket:
    """Bind a socket that only this user may connect to.

    It does not listen yet: until it does, connections are refused, so none comes before the mode is
    set.
    """
    path.unlink(missing_ok=True)  # A killed worker leaves its socket.
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    bound.bind(str(path))
    path.chmod(0o600)
    return bound


def _end_at_eof(ended: asyncio.Event) -> None:
    if not os.read(sys.stdin.fileno(), 1):
        ended.set()


def parse_arguments(arguments: list[str]) -> WorkerSettings:
    """Return the settings on the command line; exits with a message if they are invalid."""
    defaults = NodeConfig()
    parser = argparse.ArgumentParser(prog="python -m tidelog_node.tier.worker_process")
    parser.add_argument("--node-version", required=True)
    parser.add_argument("--socket", type=Path, required=True)
    parser.add_argument("--objects", required=True, metavar="URL")
    parser.add_argument("--cache-dir", type=Path, required=True)
    parser.add_argument("--cache-bytes", type=int, default=defaults.remote_cache_bytes)
    parser.add_argument("--fetch-concurrency", type=int, default=defaults.remote_fetch_concurrency)
    parser.add_argument(
        "--upload-concurrency", type=int, default=defaults.remote_upload_concurrency
    )
    parser.add_argument(
        "--upload-bytes-per-second",
        type=int,
        default=defaults.remote_log_manager_copy_max_bytes_per_second,
    )
    parser.add_argument(
        "--multipart-threshold", type=int, default=defaults.tier_multipart_threshold
    )
    parser.add_argument("--niceness", type=int, default=NICENESS)
    parser.add_argument("--wal-bytes", type=int, default=0)
    parser.add_argument("--memory-descriptor", type=int, default=-1)
    parser.add_argument("--memory-bytes", type=int, default=0)
    parser.add_argument("--log-format", choices=LOG_FORMATS, default=TEXT)
    parser.add_argument("--until-stdin-ends", action="store_true", dest="ends_with_stdin")
    fields = vars(parser.parse_args(arguments))
    del fields["node_version"], fields["log_format"]  # ``run`` has read them before
    return WorkerSettings(**fields)


def run() -> None:
    """Run the worker with the settings of the command line."""
    arguments = sys.argv[1:]
    log_format = JSON if f"--log-format={JSON}" in arguments else TEXT
    configure_logging("tier-worker", "INFO", log_format=log_format)
    require_same_version(arguments, has_log=True)
    settings = parse_arguments(arguments)
    os.nice(settings.niceness)
    asyncio.run(run_worker(settings))
