"""The requests to a worker that it has not answered.

A request whose caller has given up counts until it is answered, or the worker has ended: it is in
the worker's socket, or the worker is at it. So a worker that hangs is sent a limited number of
requests, and has to catch up with no more than these when it goes on.

A worker that hangs is found out here too (``until_hung``). One request may take minutes, so a
worker that is silent is asked for its counters, which it returns at once.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from tidelog_core.errors import TierUnavailable

from tidelog_node.tier.protocol import (
    Fields,
    OnEvent,
    Request,
    StatusRequest,
    encode_message,
    error_from_fields,
    request_to_fields,
)

LOOK_S = 10.0
# Looks in a row at a silent worker. They are counted, and not the time: this process may have
# been stopped itself.
SILENT_LOOKS_MAX = 6


class _Waiting(NamedTuple):
    """A request whose caller waits."""

    answered: asyncio.Future[Fields]
    on_event: OnEvent | None


class UnansweredRequests:
    """The requests of one client. For the tasks of one event loop."""

    def __init__(self) -> None:
        self._requests: dict[int, _Waiting | None] = {}  # None: nobody waits for the answer
        self._next_number = 0
        self._heard_count = 0  # messages of workers

    def __len__(self) -> int:
        """Return the number of requests, also of those whose callers have given up."""
        return len(self._requests)

    async def ask(
        self, writer: asyncio.StreamWriter, request: Request, on_event: OnEvent | None = None
    ) -> Fields:
        """Send the request and return its answer, as ``TierClient.call``."""
        answered: asyncio.Future[Fields] = asyncio.get_running_loop().create_future()
        number = self._send(writer, request, _Waiting(answered, on_event))
        try:
            return await answered
        finally:
            if number in self._requests:
                self._requests[number] = None

    def _send(
        self, writer: asyncio.StreamWriter, request: Request, waiting: _Waiting | None
    ) -> int:
        number = self._next_number
        message = encode_message({"id": number, **request_to_fields(request)})
        self._next_number += 1
        self._requests[number] = waiting
        writer.write(message)
        return number

    def take(self, fields: Fields) -> None:
        """Pass a message of the worker on to the caller who waits for it, if there is one."""
        self._heard_count += 1
        number = fields["id"]
        waiting = self._requests.get(number)
        if waiting is not None and not waiting.answered.done():
            _pass_on(waiting, fields)
        if "event" not in fields:
            self._requests.pop(number, None)

    def fail_all(self, problem: str) -> None:
        """Fail all requests with ``TierUnavailable``: the worker's connection has ended."""
        requests, self._requests = self._requests, {}
        for waiting in requests.values():
            if waiting is not None and not waiting.answered.done():
                waiting.answered.set_exception(TierUnavailable(problem))

    async def until_hung(self, writer: asyncio.StreamWriter) -> None:
        """Return once the worker has been silent for ``SILENT_LOOKS_MAX`` looks.

        A worker that owes no answer may be silent.
        """
        silent_count = heard_count = 0
        while silent_count < SILENT_LOOKS_MAX:
            await asyncio.sleep(LOOK_S)
            if not self._requests or self._heard_count != heard_count:
                silent_count, heard_count = 0, self._heard_count
                continue
            silent_count += 1
            if silent_count == 1:
                self._send(writer, StatusRequest(), None)


def _pass_on(waiting: _Waiting, fields: Fields) -> None:
    if "event" in fields:
        _notify(waiting, fields["event"])
    elif "error" in fields:
        waiting.answered.set_exception(error_from_fields(fields["error"]))
    else:
        result = fields["result"]
        if "data" in fields:
            result["data"] = fields["data"]
        waiting.answered.set_result(result)


def _notify(waiting: _Waiting, event: Fields) -> None:
    if waiting.on_event is None:
        return
    try:
        waiting.on_event(event)
    except Exception as error:  # The caller's: it must not end everybody's connection.
        if not waiting.answered.done():
            waiting.answered.set_exception(error)
