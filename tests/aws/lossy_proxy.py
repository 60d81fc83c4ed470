"""An HTTP proxy that loses requests or answers, to order, and shows requests."""

from __future__ import annotations

from collections.abc import Callable

from tests.support.http_messages import address_of, read_message
from tests.support.tcp_proxy import ProxiedConnection, Streams, TcpProxy, reset


class LossyProxy(TcpProxy):
    """Relays one request at a time per connection to ``upstream``.

    A lost request never reaches the server; a lost answer was carried out. Either way
    the connection is closed without a word, or reset if that is asked for.
    """

    def __init__(
        self, upstream: str, *, on_request: Callable[[bytes], None] = lambda _: None
    ) -> None:
        """``on_request`` is called with each whole request before it is passed on."""
        super().__init__(address_of(upstream))
        self._on_request = on_request
        self._requests_to_lose = 0
        self._answers_to_lose = 0
        self._every_nth = 0
        self._resets = False
        self._answer_count = 0
        self.lost_request_count = 0
        self.lost_answer_count = 0

    def lose_requests(self, count: int) -> None:
        self._requests_to_lose = count

    def lose_answers(self, count: int, *, resets: bool = False) -> None:
        self._answers_to_lose = count
        self._resets = resets

    def lose_every_nth_answer(self, n: int) -> None:
        self._every_nth = n

    async def relay(self, connection: ProxiedConnection) -> None:
        """Relay request after request, until one is lost."""
        server = await connection.dial()
        while await self._relay_one(connection.client, server):
            pass

    async def _relay_one(self, client: Streams, server: Streams) -> bool:
        request = b"".join(await read_message(client[0]))
        if self._requests_to_lose > 0:
            self._requests_to_lose -= 1
            self.lost_request_count += 1
            return False
        self._on_request(request)
        server[1].write(request)
        answer = b"".join(await read_message(server[0]))
        self._answer_count += 1
        is_nth = self._every_nth > 0 and self._answer_count % self._every_nth == 0
        if self._answers_to_lose > 0 or is_nth:
            self._answers_to_lose = max(0, self._answers_to_lose - 1)
            self.lost_answer_count += 1
            if self._resets:
                reset(client[1])
            return False
        client[1].write(answer)
        await client[1].drain()
        return True
