"""How long a live node keeps another client waiting while something is done to it.

with AnswerTimes(node.port) as times:
    ...
assert times.longest_seconds < 0.1
"""

from __future__ import annotations

import threading
import time
from types import TracebackType

from tests.support.wire_client import WireClient, encode, frame
from tests.support.wire_client import api_versions_request as request

PAUSE_SECONDS = 0.002


class AnswerTimes:
    """A client on a thread of its own that asks for ApiVersions again and again."""

    def __init__(self, port: int, *, pause_seconds: float = PAUSE_SECONDS) -> None:
        self.seconds: list[float] = []
        self._client = WireClient(port)
        self._client.socket.settimeout(120)
        self._frame = frame(18, 0, 1, encode(type(request()), request()), tags=b"")
        self._pause_seconds = pause_seconds
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._ask)

    @property
    def longest_seconds(self) -> float:
        """The longest time to an answer."""
        return max(self.seconds, default=0.0)

    def percentile(self, percent: float) -> float:
        """Return the seconds that so many in a hundred answers took at most.

        A wait counts as often as requests would have come in it, had they not waited for it.
        """
        counted: list[float] = []
        for seconds in self.seconds:
            waited = seconds
            while waited > 0:
                counted.append(waited)
                waited -= self._pause_seconds
        if not counted:
            return 0.0
        counted.sort()
        return counted[min(len(counted) - 1, int(len(counted) * percent / 100))]

    def __enter__(self) -> AnswerTimes:
        self._client.send(self._frame)
        self._client.receive()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_over.set()
        self._thread.join()
        self._client.socket.close()

    def _ask(self) -> None:
        while not self._is_over.wait(self._pause_seconds):
            began = time.perf_counter()
            self._client.send(self._frame)
            self._client.receive()
            self.seconds.append(time.perf_counter() - began)
