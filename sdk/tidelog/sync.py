"""Synchronous clients for programs without an event loop: ``Producer(...).sync()`` etc.

Each has a thread with an event loop, in which the asynchronous client runs. A call runs
the client's coroutine there and waits for it; ``Blocking`` turns a coroutine method into
such a method, with the same signature.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import (
    Any,
    Concatenate,
    Generic,
    ParamSpec,
    Self,
    TypeVar,
)

from tidelog.client import Client
from tidelog.errors import ClientClosed, InvalidRequest

P = ParamSpec("P")
T = TypeVar("T")
C = TypeVar("C")


class LoopThread:
    """A thread that runs an event loop until closed."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()
        self.is_closed = False

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run the coroutine in the loop and return its result; an interrupt cancels it."""
        if self.is_closed:
            coroutine.close()
            raise ClientClosed("the client is closed")
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise InvalidRequest("a callback in the client's thread must not call the client")
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def call_soon(self, function: Callable[[], object]) -> None:
        """Call the function in the loop, soon. Thread-safe."""
        if self.is_closed:
            raise ClientClosed("the client is closed")
        self._loop.call_soon_threadsafe(function)

    def close(self) -> None:
        """Stop the loop and the thread. Idempotent."""
        if self.is_closed:
            return
        self.is_closed = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _serve(self) -> None:
        # The loop is closed in its own thread, because other threads may run loops of their own.
        try:
            self._loop.run_forever()
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
        finally:
            self._loop.close()


ClientT = TypeVar("ClientT", bound=Client)


class SyncClient(Generic[ClientT]):
    """Runs a client in its own thread."""

    def __init__(self, client: ClientT) -> None:
        self.client = client  # Runs in the thread: call its methods only there.
        self.thread = LoopThread(f"tidelog-{type(client).__name__.lower()}")

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
        if self.thread.is_closed:
            return
        try:
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
