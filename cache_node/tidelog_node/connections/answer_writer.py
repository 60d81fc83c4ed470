"""Sends one connection's answers, and goes on by itself when the socket takes no more of them.

If the socket is full it waits until that is writable. If a slice is on the disk only, another
thread reads it first. Answers that are not sent count against the memory of requests.
"""

from __future__ import annotations

import asyncio
import functools
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from tidelog_node.answers import bytes_in_memory
from tidelog_node.connections.answer_queue import AnswerQueue
from tidelog_node.connections.segment_sender import ColdBytes, SegmentSender
from tidelog_node.disk import page_cache
from tidelog_node.fairness.request_memory import Claimant


class WritingConnection(Claimant, Protocol):
    """The connection whose answers are sent."""

    def on_writable(self) -> None:
        """Call ``AnswerWriter.send`` again: the socket, or a slice, is ready for more."""


class AnswerWriter:
    """The sending side of one connection. It keeps no reference to it between events."""

    __slots__ = ("_answers", "_disk", "_fd", "_loop", "_sender", "is_writing")

    def __init__(
        self,
        sender: SegmentSender,
        answers: AnswerQueue,
        *,
        fd: int,
        disk: ThreadPoolExecutor,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """``disk`` has the threads that read slices."""
        self._sender = sender
        self._answers = answers
        self._fd = fd
        self._disk = disk
        self._loop = loop
        # Whether sending continues without a call: the loop watches the socket, or a thread reads.
        self.is_writing = False

    def send(self, connection: WritingConnection) -> None:
        """Send as much as possible now; ``connection`` is called back for the rest.

        Raises ``OSError`` if the connection or the file is broken.
        """
        sender = self._sender
        if sender.send():
            self._on_sent(connection)
        elif sender.cold is not None:
            self._read_in(sender.cold, connection)
        else:
            self._await_writable(connection)

    def close(self) -> None:
        """Drop unsent answers, and call nobody back."""
        if self.is_writing:
            self._loop.remove_writer(self._fd)
            self.is_writing = False
        self._sender.unsent.clear()

    def _on_sent(self, connection: WritingConnection) -> None:
        """Note that nothing is unsent."""
        answers = self._answers
        if answers.sending_bytes:
            answers.sending_bytes = 0
            answers.count(connection)
        if self.is_writing:
            self.is_writing = False
            self._loop.remove_writer(self._fd)

    def _await_writable(self, connection: WritingConnection) -> None:
        if not self.is_writing:
            self.is_writing = True
            answers = self._answers
            answers.sending_bytes = max(answers.sending_bytes, bytes_in_memory(self._sender.unsent))
            answers.count(connection)
            self._loop.add_writer(self._fd, connection.on_writable)

    def _read_in(self, cold: ColdBytes, connection: WritingConnection) -> None:
        """Have a thread read the next bytes of the slice, then send on.

        It only reads from its file, so the connection may be closed at any time.
        """
        self._sender.cold = None
        if self.is_writing:
            self._loop.remove_writer(self._fd)
        self.is_writing = True
        reading = self._loop.run_in_executor(self._disk, page_cache.read_in, *cold)
        reading.add_done_callback(functools.partial(self._on_read_in, connection))

    def _on_read_in(self, connection: WritingConnection, reading: asyncio.Future[None]) -> None:
        if not reading.cancelled():
            reading.exception()  # A broken disk shows when sending.
        if self.is_writing:  # Else it was closed.
            self.is_writing = False
            connection.on_writable()
