"""One node for all tests of the SDK that do not break it, and topics of their own."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tidelog import Admin

from tests.support import transactional
from tests.support.node_process import NodeProcess
from tests.support.transactional import ProxiedBroker, TransactionalBroker
from tools.places import ToolAbsent

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """A node that every test shares; tests use topics and groups of their own."""
    config = {
        **transactional.QUICK_CONSUMER_GROUPS,
        "group.min.session.timeout.ms": "500",
    }
    with NodeProcess(tmp_path_factory.mktemp("sdk") / "node", config=config) as process:
        yield process


@pytest.fixture
def own_node(tmp_path: Path) -> Iterator[NodeProcess]:
    """A node of this test's own, to be killed."""
    process = NodeProcess(tmp_path / "node").start()
    yield process
    if process.process is not None:
        process.stop()


@pytest.fixture
def name() -> str:
    """A name that no other test uses, for topics and groups."""
    return f"n{next(_numbers)}"


@pytest.fixture
def topic(node: NodeProcess, name: str) -> str:
    """A topic of one partition."""
    return make_topic(node, f"{name}-topic", 1)


@pytest.fixture
def new_topic(node: NodeProcess, name: str) -> Callable[..., str]:
    """Makes topics of this test's own: ``new_topic(partitions, **configs)``."""
    numbers = itertools.count()

    def make(partition_count: int = 1, **configs: str) -> str:
        return make_topic(node, f"{name}-{next(numbers)}", partition_count, **configs)

    return make


def make_topic(node: NodeProcess, name: str, partition_count: int = 1, **configs: str) -> str:
    """Create a topic on the node; config names have underscores for dots."""
    dotted = {key.replace("_", "."): value for key, value in configs.items()}
    with Admin(node.address).sync() as admin:
        admin.create_topic(name, partition_count=partition_count, configs=dotted)
    return name


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TransactionalBroker]:
    """Apache Kafka, for what is tried against it first."""
    with ExitStack() as stack:
        try:
            broker = stack.enter_context(
                transactional.kafka(tmp_path_factory.mktemp("peer") / "kafka")
            )
        except ToolAbsent as absent:
            pytest.skip(str(absent))
        yield broker


@pytest.fixture(scope="session")
def tidelog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TransactionalBroker]:
    """A node of our own."""
    with transactional.tidelog(tmp_path_factory.mktemp("own")) as broker:
        yield broker


@pytest.fixture(scope="session")
def transactional_broker(request: pytest.FixtureRequest) -> Iterator[TransactionalBroker]:
    """A broker that has transactions; each in turn in tests marked ``on_every_broker``."""
    name = getattr(request, "param", transactional.BROKERS[0])
    if name == "tidelog":
        yield request.getfixturevalue("tidelog")
        return
    kafka = request.getfixturevalue("kafka")
    if name == "kafka":
        yield kafka
        return
    with transactional.without_self_adding(kafka):
        yield kafka


@pytest.fixture
def proxied_broker(transactional_broker: TransactionalBroker) -> ProxiedBroker:
    """The same broker for a test that has a ``FlakyProxy`` in front of it."""
    return transactional_broker.proxied
