"""The clients for programs without an event loop: ``Producer(...).sync()`` and so on.

Each face owns a thread with an event loop, in which its client lives. A call runs the
client's coroutine there and waits for it; ``Blocking`` makes such a method of a
coroutine method, with the same signature.
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
        """Run the coroutine in the loop and return its result; interrupted, it is cancelled."""
        if self.is_closed:
            coroutine.close()
            raise ClientClosed("the client is closed")
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise InvalidRequest("a callback of the client's own thread must not wait for it")
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def call_soon(self, function: Callable[[], object]) -> None:
        """Call the function in the loop, soon; any thread may ask."""
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
        # All of the loop's life is in this thread: the others may run loops of their own.
        try:
            self._loop.run_forever()
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
        finally:
            self._loop.close()


ClientT = TypeVar("ClientT", bound=Client)


class Face(Generic[ClientT]):
    """A client in a thread of its own."""

    def __init__(self, client: ClientT) -> None:
        self.client = client  # Lives in the thread: its methods must not be called elsewhere.
        self.thread = LoopThread(f"tidelog-{type(client).__name__.lower()}")

    def start(self) -> None:
        """Connect. Idempotent; every call does it when it was not done."""
        self.thread.run(self.client.start())

    def close(self) -> None:
        """End, as the client does, and the thread with it. Idempotent."""
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
        """Return what closes the client."""
        del has_failed
        return self.client.close()


class Blocking(Generic[C, P, T]):
    """A coroutine method of a client as a plain method of its face."""

    def __init__(self, method: Callable[Concatenate[C, P], Coroutine[Any, Any, T]]) -> None:
        self._method = method
        self.__doc__ = method.__doc__

    def __get__(self, face: Face[Any], owner: type[Face[Any]]) -> Callable[P, T]:
        """Return the method, bound to the face's client."""

        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            return face.thread.run(self._method(face.client, *args, **kwargs))

        return call


class InLoop(Generic[C, P, T]):
    """A plain method of a client that has to run in the client's loop."""

    def __init__(self, method: Callable[Concatenate[C, P], T]) -> None:
        self._method = method
        self.__doc__ = method.__doc__

    def __get__(self, face: Face[Any], owner: type[Face[Any]]) -> Callable[P, T]:
        """Return the method, bound to the face's client."""

        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            async def run() -> T:
                return self._method(face.client, *args, **kwargs)

            return face.thread.run(run())

        return call
