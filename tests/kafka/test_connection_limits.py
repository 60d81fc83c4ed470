"""How many connections brokers accept, and how fast."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from typing import Any

import pytest

from tests.kafka.compare import Pair
from tests.kafka.pairs import pair_with
from tests.support.client_quotas import alter_quotas, op
from tests.support.kafka_messages import API_KEYS
from tests.support.peer import Peer
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow  # ``tests/node/throttling`` has limits of a node alone

# Clients' addresses.
FEW, FAST = "127.0.0.5", [f"127.0.1.{number}" for number in range(1, 9)]
FEW_MAX, PER_S = 3, 4
CONFIG = {
    "quota.window.num": "3",
    "max.connections.per.ip": "100",
    "max.connections.per.ip.overrides": f"{FEW}:{FEW_MAX}",
}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    root = tmp_path_factory.mktemp("limited")
    with pair_with(root, CONFIG) as peers:
        yield peers


def both(pair: Pair, case: Callable[[Peer], Any]) -> tuple[Any, Any]:
    with ThreadPoolExecutor(2) as pool:
        kafka, tidelog = pool.map(case, (pair.kafka, pair.tidelog))
    print(f"kafka   {kafka}\ntidelog {tidelog}")
    return kafka, tidelog


def is_answered(peer: Peer) -> bool:
    """Whether a request is answered; false if the connection is closed instead."""
    frame = peer.frame(API_KEYS["api_versions"], 0, b"", is_flexible=False)
    try:
        return isinstance(peer.exchange(frame), bytes)
    except OSError:
        return False


def test_an_address_has_so_many_connections_at_once(pair: Pair) -> None:
    """A closed connection makes room for another."""

    def case(peer: Peer) -> list[bool]:
        seen: list[bool] = []
        with ExitStack() as stack:
            clients = [
                stack.enter_context(closing(Peer("few", peer.port, address=FEW))) for _ in range(5)
            ]
            seen += [is_answered(client) for client in clients]
            clients[0].close()
            # A broker learns of the end of a connection on its own time.
            eventually(lambda: is_answered(clients[0]), "there is room for another connection")
            seen += [is_answered(client) for client in clients]
        with closing(Peer("other", peer.port, address="127.0.0.7")) as other:
            seen.append(is_answered(other))
        return seen

    kafka, tidelog = both(pair, case)
    assert tidelog == kafka
    assert kafka.count(False) == 4


def test_an_address_makes_connections_at_a_rate(pair: Pair) -> None:
    """A connection over the rate is closed after a delay and does not count. Kafka checks every 0.5 s.

    If the machine is too busy to open the connections in time, the next address is tried.
    """

    def case(peer: Peer) -> tuple[list[bool], bool]:
        for address in FAST:
            alter_quotas(peer, ({"ip": address}, [op("connection_creation_rate", PER_S)]))
            time.sleep(0.5)
            began = time.monotonic()
            with ExitStack() as stack:
                clients = [
                    stack.enter_context(closing(Peer("fast", peer.port, address=address)))
                    for _ in range(2 * PER_S + 2)
                ]
                seen = [is_answered(client) for client in clients[: 2 * PER_S]]
                refused_s = time.monotonic()
                seen.append(is_answered(clients[-2]))
                waited = time.monotonic() - refused_s
                time.sleep(max(0.0, began + 1.4 - time.monotonic()))
                seen.append(is_answered(clients[-1]))
            is_in_time = refused_s - began < 0.2 and time.monotonic() - began < 1.9
            if is_in_time:
                return seen, waited > 0.2
        pytest.skip("the machine is too busy")

    kafka, tidelog = both(pair, case)
    assert tidelog == kafka
    assert kafka == ([True] * 2 * PER_S + [False, True], True)
