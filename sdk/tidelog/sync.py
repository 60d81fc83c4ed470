"""Synchronous clients for programs without an event loop: ``Producer(...).sync()`` etc.

Each has a thread with an event loop, in which the asynchronous client runs. A call runs
the client's coroutine there and waits for it; ``Blocking`` turns a coroutine method into
such a method, with the same signature.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import CancelledError, Future
from types import TracebackType
from typing import (
    Any,
    Concatenate,
    Generic,
    ParamSpec,
    Self,
    TypeVar,
)
from weakref import WeakSet

from tidelog.client import Client
from tidelog.errors import ClientClosed, InvalidRequest, TidelogError

P = ParamSpec("P")
T = TypeVar("T")
C = TypeVar("C")


class LoopThread:
    """A thread that runs an event loop until closed. Its functions may be called from any other.

    After a fork the thread runs in the parent only: there they raise ``ClientClosed`` in the child.
    """

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        # No call comes behind the one that stops the loop; a signal's handler may come in between.
        self._lock = threading.RLock()
        self.is_closed = False
        # In this process. Checked for each record: ``Thread.is_alive`` takes ten times as long.
        self.is_here = True
        _threads.add(self)
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    @property
    def is_running(self) -> bool:
        """Whether calls can be answered."""
        return not self.is_closed and self.is_here

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run the coroutine in the loop and return its result; an interrupt cancels it.

        Raises ``ClientClosed``, also if another thread closes the client during the call.
        """
        try:
            future = self._submit(coroutine)
        except TidelogError:
            coroutine.close()
            raise
        try:
            return future.result()
        except CancelledError:
            raise ClientClosed("the client was closed during the call") from None
        except BaseException:
            future.cancel()
            raise

    def call_soon(self, function: Callable[[], object]) -> None:
        """Call the function in the loop, soon."""
        self.check_running()
        with self._lock:
            self.check_running()
            self._loop.call_soon_threadsafe(function)

    def close(self) -> None:
        """Stop the loop and the thread; calls under way raise ``ClientClosed``. Idempotent."""
        if not self.is_here:
            self.is_closed = True  # The loop is the parent's.
            return
        with self._lock:
            if self.is_closed:
                return
            self.is_closed = True
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def check_caller(self) -> None:
        """Raise ``InvalidRequest`` in the thread itself, which would wait for itself."""
        if threading.current_thread() is self._thread:
            raise InvalidRequest("a callback in the client's thread must not call the client")

    def _submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        self.check_caller()
        self.check_running()
        with self._lock:
            self.check_running()
            try:
                return asyncio.run_coroutine_threadsafe(coroutine, self._loop)
            except RuntimeError:  # A signal's handler has closed the loop just now.
                raise ClientClosed("the client is closed") from None

    def check_running(self) -> None:
        """Raise ``ClientClosed`` if no call can be answered.

        To be asked before a lock is taken: in a forked process another thread may hold it forever.
        """
        if self.is_closed:
            raise ClientClosed("the client is closed")
        if not self.is_here:
            raise ClientClosed("this process was forked: it needs a client of its own")

    def _serve(self) -> None:
        # The loop is closed in its own thread, because other threads may run loops of their own.
        try:
            self._loop.run_forever()
            self._loop.run_until_complete(_cancel_others(asyncio.all_tasks(self._loop)))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
        finally:
            self.is_closed = True  # A callback's ``SystemExit`` ends the loop too.
            self._loop.close()


_threads: WeakSet[LoopThread] = WeakSet()


def _leave_threads() -> None:
    """Note in a forked process that the threads are the parent's."""
    for thread in _threads:
        thread.is_here = False


os.register_at_fork(after_in_child=_leave_threads)


async def _cancel_others(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel the tasks, for whose results other threads may wait, and wait for their ends."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


ClientT = TypeVar("ClientT", bound=Client)


class SyncClient(Generic[ClientT]):
    """Runs a client in its own thread."""

    def __init__(self, client: ClientT) -> None:
        self.client = client  # Runs in the thread: call its methods only there.
        self.thread = LoopThread(f"tidelog-{type(client).__name__.lower()}")
        self._closing = threading.RLock()
        self._is_ending = False

    def start(self) -> None:
        """Connect. Idempotent; every call starts the client if needed."""
        self.thread.run(self.client.start())

    def close(self) -> None:
        """Close the client and end the thread. Idempotent."""
        self._close(has_failed=False)

    def __enter__(self) -> Self:
        """Start."""
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close."""
        self._close(has_failed=exc is not None)

    def _close(self, *, has_failed: bool) -> None:
        self.thread.check_caller()
        if not self.thread.is_here:  # Before the lock, see ``LoopThread.check_running``.
            self.thread.close()
            return
        # One at a time, and no second one from within the first: a signal's handler may close too.
        with self._closing:
            if self._is_ending:
                return
            self._is_ending = True
            try:
                if self.thread.is_running:
                    self.thread.run(self._end(has_failed=has_failed))
            finally:
                self.thread.close()

    def _end(self, *, has_failed: bool) -> Coroutine[Any, Any, None]:
        """Return the coroutine that closes the client."""
        del has_failed
        return self.client.close()


class Blocking(Generic[C, P, T]):
    """Turns a client's coroutine method into a blocking method."""

    def __init__(self, method: Callable[Concatenate[C, P], Coroutine[Any, Any, T]]) -> None:
        self._method = method
        self.__doc__ = method.__doc__

    def __get__(self, sync_client: SyncClient[Any], owner: type[SyncClient[Any]]) -> Callable[P, T]:
        """Return the method, bound to the client."""

        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            return sync_client.thread.run(self._method(sync_client.client, *args, **kwargs))

        return call


class InLoop(Generic[C, P, T]):
    """Runs a client's plain method in the client's loop."""

    def __init__(self, method: Callable[Concatenate[C, P], T]) -> None:
        self._method = method
        self.__doc__ = method.__doc__

    def __get__(self, sync_client: SyncClient[Any], owner: type[SyncClient[Any]]) -> Callable[P, T]:
        """Return the method, bound to the client."""

        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            async def run() -> T:
                return self._method(sync_client.client, *args, **kwargs)

            return sync_client.thread.run(run())

        return call
