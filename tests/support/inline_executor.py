"""An executor without threads, for loops in virtual time: they cannot wait for a thread."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class InlineExecutor(Executor):
    """Runs what is submitted at once."""

    def submit(self, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run it; return the future with its outcome."""
        done: Future[T] = Future()
        try:
            done.set_result(work(*args, **kwargs))
        except Exception as error:
            done.set_exception(error)
        return done
