"""Runs the control requests of one connection, one after the other.

Clients expect that of their own requests: each sees what the one before it has done.
"""

from __future__ import annotations

import logging
from typing import Protocol

from tidelog_node.answers import CloseConnection
from tidelog_node.connections.answer_queue import AnswerQueue
from tidelog_node.fairness.request_memory import RequestMemory

logger = logging.getLogger(__name__)


class ControlledConnection(Protocol):
    """The connection that the requests came from."""

    def is_control_next(self) -> bool:
        """Return whether a control request waits, and for nothing before its own answer."""

    def on_control_answered(self) -> None:
        """Send the answers whose turn has come, unless the client has left."""

    def on_control_ended(self, failure: CloseConnection | None) -> None:
        """Note that no request runs any more; close for ``failure``, if there is one."""


async def run_control_requests(
    connection: ControlledConnection, answers: AnswerQueue, memory: RequestMemory
) -> None:
    """Run requests while it is their turn.

    Ends where answers before them are pending, and where the client does not take its answers,
    which may be large: the connection runs this again when they are out.
    """
    failure: CloseConnection | None = CloseConnection("cancelled", is_expected=True)
    try:
        while connection.is_control_next():
            request = answers.control.popleft()
            request.reply = await request.call()
            answers.control_bytes -= request.request_bytes
            memory.give_back_control(request.request_bytes)
            connection.on_control_answered()
        failure = None
    except CloseConnection as closing:
        failure = closing
    except Exception as problem:
        logger.exception("request failed")
        failure = CloseConnection(f"request failed: {problem!r}")
    finally:
        if failure is not None:
            memory.give_back_control(answers.drop_control())
        connection.on_control_ended(failure)
        failure = None  # Its traceback has this frame: else both stay until garbage is collected.
