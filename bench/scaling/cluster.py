"""Running brokers, the resources they have used, and the requests of all dimensions."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, nullcontext
from pathlib import Path

from kio.schema.create_topics.v5 import request as create_topics
from kio.schema.find_coordinator.v2 import request as find_coordinator
from tidelog_core.batched import batched
from tidelog_core.wire_messages import build

from bench.peers.cores import pinned_to
from bench.process import Node
from bench.scaling.brokers import Server, Units, store_url
from bench.usage import process_tree, rss_megabytes
from tests.support.batches import batch_of
from tests.support.wire_client import WireClient, milliseconds

HOT = "hot"
CALL_SECONDS_MAX = 120.0
_RETRY_SECONDS = 0.01
_TOPICS_AT_ONCE = 500


class Cluster:
    """Running brokers that share a metadata store and a bucket."""

    def __init__(
        self, server: Server, folder: Path, count: int, *, core: int | None = None
    ) -> None:
        """``core`` is the core of all brokers; ``None``: any core."""
        self._core = core
        self.folder = folder
        self.nodes: list[Node] = []
        self._brokers = server.brokers(folder, count)
        self._stack = ExitStack()

    @property
    def store_url(self) -> str:
        """The metadata store, for writing synthetic items while the nodes are stopped."""
        return store_url(self.folder)

    @property
    def port(self) -> int:
        """Return the first broker's port."""
        return self.nodes[0].port

    def start(self) -> None:
        """Start all brokers; each serves on return."""
        # One after the other: the first creates the cluster.
        with nullcontext() if self._core is None else pinned_to(self._core):
            self.nodes = [self._stack.enter_context(broker.run()) for broker in self._brokers]

    def stop(self) -> None:
        """Stop all brokers in order."""
        self.nodes = []
        self._stack.close()

    def cpu_seconds(self) -> float:
        """Return user and system time of all processes since they started."""
        return sum(node.cpu_seconds() for node in self.nodes)

    def memory_megabytes(self) -> float:
        """Return resident memory of all processes.

        Shared pages count for each process: the private share would depend on other processes.
        """
        pids = [pid for node in self.nodes for pid in process_tree(node.pid)]
        return sum(map(rss_megabytes, pids))

    def units(self) -> Units:
        """Return the units of the store that all brokers have used since their start."""
        found = [broker.units() for broker in self._brokers]
        return Units(sum(one.reads for one in found), sum(one.writes for one in found))

    def client(self, port: int | None = None) -> WireClient:
        """Connect to the first broker, or to the broker with this port."""
        client = WireClient(self.port if port is None else port)
        client.socket.settimeout(CALL_SECONDS_MAX)
        return client

    def create_topics(
        self,
        sizes: Mapping[str, int],
        *,
        replicas: int = 1,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """Create topics; ``sizes`` are partition counts. Raises ``RuntimeError`` if refused."""
        configs = tuple(
            build(create_topics.CreatableTopicConfig, name=key, value=value)
            for key, value in (settings or {}).items()
        )
        wanted = [
            build(
                create_topics.CreatableTopic,
                name=name,
                num_partitions=count,
                replication_factor=replicas,
                configs=configs,
            )
            for name, count in sizes.items()
        ]
        with self.client() as client:
            for topics in batched(wanted, _TOPICS_AT_ONCE):
                request = build(
                    create_topics.CreateTopicsRequest,
                    topics=tuple(topics),
                    timeout=milliseconds(int(CALL_SECONDS_MAX * 1000)),
                )
                refused = [a for a in client.call(request).topics if a.error_code]
                if refused:
                    raise RuntimeError(f"a topic was not created: {refused[0]}")

    def await_coordinator(self, key: str, *, is_transactional: bool = False) -> None:
        """Return once a broker coordinates the group or transactional id."""
        request = build(
            find_coordinator.FindCoordinatorRequest, key=key, key_type=int(is_transactional)
        )
        self._until(lambda client: client.call(request).error_code == 0, f"{key} has a coordinator")

    def await_record(self, topic: str = HOT, partition: int = 0) -> int:
        """Return the port of the partition's leader once that has acknowledged a record."""

        def leads(client: WireClient) -> bool:
            answer = client.produce(topic, batch_of(b"first"), partition=partition, acks=-1)
            return not answer.error_code

        return self._until(leads, f"{topic} takes records")

    def _until(self, holds: Callable[[WireClient], bool], what: str) -> int:
        """Return the port of the first broker that fulfils the condition."""
        deadline = time.monotonic() + CALL_SECONDS_MAX
        while True:
            for node in self.nodes:
                with self.client(node.port) as client:
                    if holds(client):
                        return node.port
            if time.monotonic() > deadline:
                raise TimeoutError(f"it never came to be that {what}")
            time.sleep(_RETRY_SECONDS)
