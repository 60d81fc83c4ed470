"""``SenderTask`` runs a producer's sender, again if the program has cancelled its task.

Programs that end cancel every task of their event loop, the sender's among them, and flush or close
the producer behind that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from tidelog.cluster import Cluster
from tidelog.errors import ClientClosed
from tidelog.options import ProducerOptions
from tidelog.producing.accumulator import Accumulator
from tidelog.producing.sender import Sender
from tidelog.producing.transactions import Transactions

logger = logging.getLogger(__name__)


class SenderTask:
    """The sender of one producer, and its task. Used from one event loop only."""

    def __init__(
        self,
        cluster: Cluster,
        accumulator: Accumulator,
        options: ProducerOptions,
        transactions: Transactions | None,
        on_ended: Callable[[], None],
    ) -> None:
        """``on_ended`` is called when nothing is sent any more, until ``run`` or ``wake``."""
        self._cluster = cluster
        self._accumulator = accumulator
        self._options = options
        self._transactions = transactions
        self._on_ended = on_ended
        self._sender: Sender | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_over = False
        self.failure: ClientClosed | None = None  # the fault of ours that ended it

    @property
    def has_begun(self) -> bool:
        """Whether it has been run."""
        return self._sender is not None

    @property
    def is_running(self) -> bool:
        """Whether records are sent."""
        return self._task is not None

    def wake(self) -> None:
        """Check again for batches to send; does nothing before ``run``, and raises as it does."""
        if self._sender is not None:
            self.run()
            self._sender.wake()

    def run(self) -> None:
        """Run, unless it runs, is over or has failed. The cluster must have been started.

        Raises ``InvalidRequest`` in another event loop.
        """
        if self._task is not None or self._is_over or self.failure is not None:
            return
        self._cluster.resume()
        if self._sender is None:
            self._sender = Sender(
                self._cluster, self._accumulator, self._options, self._transactions
            )
        self._task = asyncio.get_running_loop().create_task(self._sender.run())
        self._task.add_done_callback(self._on_task_ended)

    async def end(self) -> None:
        """End for good."""
        self._is_over = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _on_task_ended(self, task: asyncio.Task[None]) -> None:
        if self._is_over:
            return
        self._task = None
        if task.cancelled():
            if self._accumulator.incomplete:
                logger.warning(
                    "the producer's task was cancelled, flush or close it to send its records",
                    extra={"batch_count": len(self._accumulator.incomplete)},
                )
        elif (error := task.exception()) is not None:
            # Nothing would send the records, nor let them expire.
            self.failure = ClientClosed(f"the producer has failed: {error!r}")
            self.failure.__cause__ = error
            if self._transactions is not None:
                self._transactions.fail(self.failure)
            self._accumulator.fail_all(self.failure)
        self._on_ended()
