"""Work on a log that alternates between a thread that may block and the log's own thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from threading import Lock


class AlternatingSteps:
    """The steps of such work: the first one blocks, the second does not, and so on.

    Until ``is_done``, the caller calls ``run`` on any thread, and then ``go_on`` on the log's
    thread. Either may be called at any time: under the lock it does nothing unless it is its turn.
    After an ``error`` no step is done.
    """

    def __init__(self, *steps: Callable[[], None]) -> None:
        self._steps = deque(steps)
        self._may_block = True  # the next step
        self._lock = Lock()
        self.error: OSError | None = None

    @property
    def is_done(self) -> bool:
        """Whether no step is left."""
        return not self._steps

    def run(self) -> None:
        """Do the next step, on any thread, if it is one that blocks. An ``error`` is kept."""
        with self._lock:
            if self._steps and self._may_block and self.error is None:
                try:
                    self._do_next()
                except OSError as error:
                    self.error = error

    def go_on(self) -> None:
        """Do the next step, unless it blocks. For the log's thread. Raises ``OSError``.

        That is the kept ``error``, or the step's own: then the step can be tried again.
        """
        with self._lock:
            if self.error is not None:
                raise self.error
            if self._steps and not self._may_block:
                self._do_next()

    def cancel(self) -> None:
        """Do nothing more. Waits for a step that is under way."""
        with self._lock:
            if self._steps and self.error is None:
                self.error = OSError("the log was given up")

    def _do_next(self) -> None:
        self._steps[0]()
        self._steps.popleft()
        self._may_block = not self._may_block
