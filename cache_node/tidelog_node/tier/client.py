"""The node's side of the tier worker: starts it, sends requests, restarts it if it dies.

The first call starts the worker and waits for it to connect, so a node that has nothing to tier
does without the process and its memory. After that, while no worker is connected, calls fail
immediately with ``TierUnavailable``, which is retriable. So do the calls in progress when a
worker dies. No call waits for a restart. What keeps workers away is a fault of the node
(``WorkerStarts``). A worker that hangs is killed (``UnansweredRequests``).

A worker's object store may be another one than that of the worker before. So the calls of each
connection wait until the store has been recognized through that connection (``StoreGate``).
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from tidelog_core.errors import TidelogError, TierUnavailable
from tidelog_core.model import ReadableFile
from tidelog_core.tier.store_identity import StoreIdentity

from tidelog_node.node_health import NodeHealth
from tidelog_node.tier.protocol import (
    ByteRange,
    Fields,
    ForgetRequest,
    OnEvent,
    ProtocolError,
    ReadRequest,
    Request,
    StatusRequest,
    UploadRequest,
    UploadResult,
    read_message,
    upload_result_from_fields,
)
from tidelog_node.tier.store_gate import StoreGate
from tidelog_node.tier.unanswered import UnansweredRequests
from tidelog_node.tier.wal_messages import WalDropRequest, WalRequest
from tidelog_node.tier.worker_command import WorkerCommand
from tidelog_node.tier.worker_starts import WorkerStarts
from tidelog_node.tier.worker_store import WorkerAway, WorkerStore
from tidelog_node.tracing.tracer import Tracer, span

logger = logging.getLogger(__name__)

FIRST_CALLS_S_MAX = 20.0  # that calls wait for the first worker
CONNECT_POLL_S_MIN, CONNECT_POLL_S_MAX = 0.02, 0.2
STOP_TIMEOUT_S = 10.0
STATUS_SECONDS_MAX = 2.0  # a worker that takes longer has no counters this time
OPEN_ATTEMPTS_MAX = 3
REQUESTS_MAX = 1000
SOCKET_READ_SIZE_BYTES = 1 << 20
SOCKET_PATH_LENGTH_MAX = 100  # a little below Linux' 107 and macOS' 103
STORELESS = (StatusRequest, ForgetRequest, WalDropRequest)  # Whatever the store is, they are right.


class TierClient(WorkerStore):
    """Calls the worker. For the tasks of one event loop, between ``start`` and ``close``.

    It is the node's ``ObjectStore``.
    """

    def __init__(
        self,
        command: WorkerCommand,
        tracer: Tracer | None = None,
        *,
        health: NodeHealth | None = None,
        identity: StoreIdentity | None = None,
        first_calls_s_max: float = FIRST_CALLS_S_MAX,
    ) -> None:
        """``health`` gets the reason why a worker cannot serve.

        ``identity`` checks the store of each worker; ``None``: any store is right.
        """
        super().__init__(self.call)
        self._tracer = tracer
        self._identity = identity
        self._health = health or NodeHealth()
        self._first_calls_s_max = first_calls_s_max
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        if len(str(command.socket)) > SOCKET_PATH_LENGTH_MAX:
            # A private folder, so that no other user can put a socket there.
            self._temporary = tempfile.TemporaryDirectory(prefix="tidelog-")
            socket = Path(self._temporary.name) / command.socket.name
            command = dataclasses.replace(command, socket=socket)
        self._command = command
        self._unanswered = UnansweredRequests()
        self._writer: asyncio.StreamWriter | None = None
        self._gate: StoreGate | None = None  # of the connection; None: any store is right
        self._process: asyncio.subprocess.Process | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._ready = asyncio.Event()
        self._is_open = False
        # The first worker is connected, or has ended, or takes long.
        self._has_started = asyncio.Event()
        self._starts = WorkerStarts()
        self._name = command.socket.stem  # of the worker, for logs and faults
        self._connection_count = 0
        self._reported: str | None = None  # the fault that the node's health has
        self.restart_count = 0

    @property
    def is_connected(self) -> bool:
        """Whether a worker is connected."""
        return self._writer is not None

    @property
    def may_answer(self) -> bool:
        """Whether a worker is connected, or none has been needed yet."""
        return self._writer is not None or (self._is_open and not self._has_started.is_set())

    @property
    def worker_pid(self) -> int | None:
        """The worker's process id, ``None`` while none runs."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Allow calls. The first call, or ``wait_ready``, starts the worker."""
        self._is_open = True

    def _start_worker(self) -> None:
        if self._supervisor is None:
            self._supervisor = asyncio.create_task(self._supervise(), name="tier worker supervisor")

    async def wait_ready(self, timeout: float) -> None:
        """Wait until a worker is connected. Raises ``TimeoutError``."""
        self._start_worker()
        async with asyncio.timeout(timeout):
            await self._ready.wait()

    async def close(self) -> None:
        """End the worker and fail the calls in progress."""
        self._is_open = False
        self._has_started.set()
        if self._supervisor is not None:
            self._supervisor.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._supervisor
            self._supervisor = None
        if self._temporary is not None:
            self._temporary.cleanup()

    async def read(self, wanted: ByteRange, ahead: tuple[ByteRange, ...] = ()) -> ReadableFile:
        """Return an open file that holds exactly the range's bytes.

        Raises ``ObjectNotFound``, ``StoreUnavailable``, ``TierUnavailable``,
        ``CorruptObject``, ``StorageError``.
        """
        for _ in range(OPEN_ATTEMPTS_MAX):
            result = await self.call(ReadRequest(wanted, ahead))
            try:
                return ReadableFile(Path(result["path"]))
            except FileNotFoundError:
                continue  # Evicted between the answer and now.
        raise TierUnavailable("the cache of tiered segments is too small for the reads")

    async def upload(self, request: UploadRequest) -> UploadResult:
        """Store a segment's two objects; durable on return. May be repeated with the same keys."""
        return upload_result_from_fields(await self.call(request))

    async def forget(self, keys: tuple[str, ...]) -> None:
        """Remove the cached ranges of these objects."""
        await self.call(ForgetRequest(keys))

    async def status(self) -> Mapping[str, Any]:
        """Return the worker's counters; ``TierWorker`` names them."""
        return await self.call(StatusRequest())

    async def status_if_running(self) -> Mapping[str, Any] | None:
        """Return the worker's counters, ``None`` if none runs or it does not answer."""
        if not self.is_connected:
            return None
        try:
            async with asyncio.timeout(STATUS_SECONDS_MAX):
                return await self.status()
        except (TidelogError, TimeoutError):
            return None

    async def call(self, request: Request, on_event: OnEvent | None = None) -> Fields:
        """Return the worker's answer. Raises the store's errors, ``TierUnavailable``.

        ``on_event`` is called with the request's event, if there is one before the answer and
        before the worker has ended. What it raises, the call raises, and other calls go on.
        """
        with span(self._tracer, f"tier worker {type(request).__name__}", {}):
            return await self._answer_of(request, on_event)

    async def _answer_of(self, request: Request, on_event: OnEvent | None) -> Fields:
        if self._is_open and not self._has_started.is_set():
            self._start_worker()
            await self._has_started.wait()
        while (gate := self._gate) is not None and not gate.is_open:
            if isinstance(request, STORELESS):
                break
            await gate.opened()  # Another worker may have connected since.
        writer = self._writer
        if writer is None:
            raise WorkerAway("the tier worker is not running just now")
        return await self._ask(writer, request, on_event)

    async def _ask(
        self, writer: asyncio.StreamWriter, request: Request, on_event: OnEvent | None = None
    ) -> Fields:
        # A chain bounds its own requests. Acks do not wait behind reads, and a drop that is refused
        # would keep the bytes of a chain that has ended.
        is_of_chain = isinstance(request, WalRequest)
        if len(self._unanswered) >= REQUESTS_MAX and not is_of_chain:
            raise TierUnavailable(f"{REQUESTS_MAX} requests wait for the tier worker")
        return await self._unanswered.ask(writer, request, on_event)

    async def _supervise(self) -> None:
        loop, starts = asyncio.get_running_loop(), self._starts
        waiting = loop.call_later(self._first_calls_s_max, self._has_started.set)
        try:
            while True:
                started_s, status, connected = loop.time(), None, self._connection_count
                try:
                    status = await self._run_once()
                except OSError as error:
                    logger.error("tier worker cannot be started", extra={"reason": str(error)})
                except Exception:  # Otherwise no call would be served until the node restarts.
                    logger.exception("tier worker's supervision broke, will restart it")
                was_connected = self._connection_count > connected
                delay_s = starts.ended(
                    loop.time() - started_s, was_connected=was_connected, status=status
                )
                logger.warning(
                    "tier worker ended, will restart",
                    extra={"worker": self._name, "status": status, "delay_s": delay_s},
                )
                self._publish_fault()
                self.restart_count += 1
                self._has_started.set()
                await asyncio.sleep(delay_s)
        finally:
            waiting.cancel()

    def _publish_fault(self) -> None:
        """Report why the worker cannot serve, log a new reason; clear it once it serves."""
        fault, reported = self._starts.fault, self._reported
        if reported is not None and (fault is None or fault.name != reported):
            self._health.clear(reported, subject=self._name)
        self._reported = None if fault is None else fault.name
        if fault is not None and self._health.report(*fault, subject=self._name):
            logger.error(
                "tier worker cannot serve",
                extra={"worker": self._name, "reason": fault.name, "hint": fault.detail},
            )

    async def _run_once(self) -> int | None:
        """Start a worker and pass its answers on. Return the exit status of the process.

        The process has ended on return.
        """
        self._command.socket.parent.mkdir(parents=True, exist_ok=True)
        # A socket left there does not belong to the worker about to start.
        self._command.socket.unlink(missing_ok=True)
        process = await asyncio.create_subprocess_exec(
            *self._command.arguments(),
            stdin=asyncio.subprocess.PIPE,
            env=self._command.environment_variables(),
            pass_fds=self._command.descriptors(),
        )
        self._process = process
        try:
            connection = await self._connect(process)
            if connection is not None:
                await self._pass_answers(process, *connection)
        finally:
            self._process = None
            await _stop(process)
        return process.returncode

    async def _connect(
        self, process: asyncio.subprocess.Process
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        """Return the connection, ``None`` if the process has ended or takes too long."""
        loop, pause_s = asyncio.get_running_loop(), CONNECT_POLL_S_MIN
        deadline = loop.time() + self._starts.connect_s_max
        while process.returncode is None:
            try:
                return await asyncio.open_unix_connection(
                    self._command.socket, limit=SOCKET_READ_SIZE_BYTES
                )
            except OSError:
                # Nothing signals that the worker has begun to listen.
                await asyncio.sleep(pause_s)
                pause_s = min(1.5 * pause_s, CONNECT_POLL_S_MAX)
            if loop.time() >= deadline:
                logger.error(
                    "tier worker does not serve in time, killed",
                    extra={"worker": self._name, "seconds_max": self._starts.connect_s_max},
                )
                self._starts.timed_out()
                with contextlib.suppress(ProcessLookupError):  # It has ended by itself.
                    process.kill()
                return None
        return None

    async def _pass_answers(
        self,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._writer = writer
        watching = asyncio.create_task(self._end_if_hung(process, writer), name="worker watch")
        checking = self._begin_check(writer)
        self._connection_count += 1
        self._starts.connected()
        self._publish_fault()
        self._has_started.set()
        self._ready.set()
        logger.info("tier worker started", extra={"pid": self.worker_pid})
        try:
            while (fields := await read_message(reader)) is not None:
                self._unanswered.take(fields)
        except ProtocolError as error:
            logger.error("tier worker broke the protocol", extra={"reason": str(error)})
        finally:
            self._writer = self._gate = None
            self._ready.clear()
            if checking is not None:
                checking.cancel()
                await asyncio.gather(checking, return_exceptions=True)
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            self._unanswered.fail_all("the tier worker ended during the request")
            # What is in its buffer may never be read: a worker that hangs reads nothing.
            writer.transport.abort()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _end_if_hung(
        self, process: asyncio.subprocess.Process, writer: asyncio.StreamWriter
    ) -> None:
        """Kill the worker and end its connection once it hangs; the next one serves."""
        await self._unanswered.until_hung(writer)
        logger.error("tier worker does not answer, killed", extra={"worker": self._name})
        with contextlib.suppress(ProcessLookupError):  # It has ended by itself.
            process.kill()
        writer.transport.abort()  # Its end may have to wait for a file system.

    def _begin_check(self, writer: asyncio.StreamWriter) -> asyncio.Task[None] | None:
        """Begin to check the store of the worker that has connected."""
        if self._identity is None:
            return None
        store = WorkerStore(partial(self._ask, writer))  # It does not wait for the gate.
        self._gate = StoreGate(
            partial(self._identity.check, store), health=self._health, worker=self._name
        )
        return asyncio.create_task(self._gate.run(), name="object store check")


async def _stop(process: asyncio.subprocess.Process) -> None:
    """Close the worker's standard input and wait for its end; kill it after the timeout."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        async with asyncio.timeout(STOP_TIMEOUT_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
