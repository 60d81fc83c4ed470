"""An open cluster becomes a closed one, listener by listener, as docs/upgrade-to-closed.md has it."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from tests.node.security.traffic import Traffic
from tests.support.certificates import Authority
from tests.support.node_process import NodeProcess
from tests.support.replicated_cluster import ReplicatedCluster, replicated_cluster
from tests.support.waiting import eventually
from tools.places import ROOT
from tools.ports import free_port

TOPIC, GROUP = "orders", "readers"
ADMIN, ALICE, BOB = "admin", "alice", "bob"
PASSWORD = "a-password-of-the-test"
SECONDS_MAX = 30.0
# How much longer than a plain restart a step may hold clients up: machines of tests are busy.
PAUSE_SECONDS_MORE = 5.0


class Closing:
    """The nodes, and the steps from one kind of listener to the other."""

    def __init__(self, nodes: list[NodeProcess], authority: Authority) -> None:
        self.nodes = nodes
        self.authority = authority
        self.secure_ports = {node.broker_id: free_port() for node in nodes}

    # -- settings of nodes --

    def add_secure_listener(self, node: NodeProcess) -> None:
        """Take clients at both kinds of listeners, and only log what ACLs would refuse."""
        node.config |= {
            "listeners": f"PLAINTEXT://127.0.0.1:{node.port},{self._secure(node)}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SECURE:SASL_SSL",
            "ssl.keystore.location": str(self.authority.node_pem()),
            "authorizer.class.name": "tidelog.acl",
            "authorizer.dry.run": "true",
            "super.users": f"User:{ADMIN}",
        }

    def remove_open_listener(self, node: NodeProcess) -> None:
        """Take clients at the secure listener alone."""
        node.config["listeners"] = self._secure(node)
        node.config["listener.security.protocol.map"] = "SECURE:SASL_SSL"

    def enforce_acls(self, node: NodeProcess) -> None:
        """Refuse what ACLs refuse."""
        del node.config["authorizer.dry.run"]

    def _secure(self, node: NodeProcess) -> str:
        return f"SECURE://127.0.0.1:{self.secure_ports[node.broker_id]}"

    # -- settings of clients --

    @property
    def in_the_open(self) -> dict[str, Any]:
        """How clients connect at first."""
        return {"bootstrap.servers": ",".join(node.address for node in self.nodes)}

    def as_user(self, user: str, password: str = PASSWORD) -> dict[str, Any]:
        """How a client connects at the secure listener."""
        addresses = [f"127.0.0.1:{port}" for port in self.secure_ports.values()]
        return {
            "bootstrap.servers": ",".join(addresses),
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": user,
            "sasl.password": password,
            "ssl.ca.location": str(self.authority.trusted),
        }

    # -- steps --

    def restart_each(
        self, change: Callable[[NodeProcess], None], settings: Callable[[], dict[str, Any]]
    ) -> None:
        """Restart one node after the other, each when all replicas are in sync again."""
        for node in self.nodes:
            node.stop()
            change(node)
            node.start()
            eventually(lambda: self.is_in_sync(settings()), "all replicas are in sync")

    def is_in_sync(self, settings: dict[str, Any]) -> bool:
        """Return whether every replica of every partition is in the ISR, as each node knows it."""
        count = len(self.nodes)
        for address in settings["bootstrap.servers"].split(","):
            admin = AdminClient({**settings, "bootstrap.servers": address})
            try:
                partitions = admin.list_topics(TOPIC, timeout=5).topics[TOPIC].partitions
            except KafkaException:
                return False
            if not partitions:
                return False
            if any(len(one.isrs) < count or one.leader < 0 for one in partitions.values()):
                return False
        return True

    def add_users_and_rights(self, settings: dict[str, Any]) -> None:
        """Add the users, and what Alice needs; Bob gets no rights."""
        admin = AdminClient(settings)
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        for user in (ADMIN, ALICE, BOB):
            upsertion = UserScramCredentialUpsertion(user, info, PASSWORD.encode())
            for done in admin.alter_user_scram_credentials([upsertion]).values():
                done.result(SECONDS_MAX)
        bindings = [
            AclBinding(
                kind,
                name,
                ResourcePatternType.LITERAL,
                f"User:{ALICE}",
                "*",
                operation,
                AclPermissionType.ALLOW,
            )
            for kind, name, operation in (
                (ResourceType.TOPIC, TOPIC, AclOperation.READ),
                (ResourceType.TOPIC, TOPIC, AclOperation.WRITE),
                (ResourceType.GROUP, GROUP, AclOperation.READ),
            )
        ]
        for done in admin.create_acls(bindings).values():
            done.result(SECONDS_MAX)
        every_acl = AclBindingFilter(
            ResourceType.ANY,
            None,
            ResourcePatternType.ANY,
            None,
            None,
            AclOperation.ANY,
            AclPermissionType.ANY,
        )
        for node in self.nodes:  # Those that did not store them know them a moment later.
            asked = AdminClient({"bootstrap.servers": node.address})
            eventually(
                lambda: len(asked.describe_acls(every_acl).result(SECONDS_MAX)) == len(bindings)  # noqa: B023
            )

    def would_be_denied(self) -> str:
        """Return the lines of the dry run."""
        return "\n".join(
            line
            for node in self.nodes
            for line in node.log.splitlines()
            if "would be denied" in line
        )

    def assert_closed(self) -> None:
        """Nobody gets in without a login, and nobody has more than his rights."""
        for node in self.nodes:
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", node.port), SECONDS_MAX)
        assert error_of(self.as_user(ALICE)) is None
        assert "TOPIC_AUTHORIZATION_FAILED" in str(error_of(self.as_user(BOB)))
        problems: list[KafkaError] = []
        settings = self.as_user(ALICE, "wrong") | {"error_cb": problems.append, "log_level": 0}
        wrong = Producer(settings)
        eventually(lambda: bool(wrong.poll(0.05) or problems))
        assert problems[0].code() == KafkaError._AUTHENTICATION


def error_of(settings: dict[str, Any]) -> object:
    """Produce a record; return its error."""
    errors: list[object] = []

    def on_delivery(error: Any, _: object) -> None:
        errors.append(None if error is None else error.name())

    producer = Producer({**settings, "message.timeout.ms": 20_000})
    producer.produce(TOPIC, b"0", partition=0, on_delivery=on_delivery)
    assert producer.flush(SECONDS_MAX) == 0
    return errors[0]


@contextmanager
def moved(traffic: Traffic, clients: ExitStack, closing: Closing) -> Iterator[None]:
    """Have other clients go on, one after the other, and end those that there are."""
    settings = closing.as_user(ALICE)
    with traffic.member(settings), traffic.producer(settings):
        clients.close()
        # As in Kafka, a coordinator that restarts before has the members of the last generation.
        admin = AdminClient(closing.as_user(ADMIN))

        def is_stable() -> bool:
            group = admin.describe_consumer_groups([GROUP])[GROUP].result(SECONDS_MAX)
            return bool(group.state == ConsumerGroupState.STABLE and len(group.members) == 1)

        eventually(is_stable, "the group is stable")
        yield


@pytest.mark.slow  # twelve restarts
@pytest.mark.timeout(600)
def test_three_nodes_are_closed_while_clients_go_on(tmp_path: Path) -> None:
    with replicated_cluster(tmp_path) as cluster:
        close_cluster(cluster, Authority(tmp_path / "authority"))


def close_cluster(cluster: ReplicatedCluster, authority: Authority) -> None:
    closing = Closing(list(cluster.nodes.values()), authority)
    cluster.create(TOPIC, partitions=3, min_insync_replicas="2")
    traffic = Traffic(TOPIC, partitions=3, group=GROUP)
    pauses: dict[str, dict[str, float]] = {}
    with ExitStack() as clients:
        clients.enter_context(traffic.member(closing.in_the_open))
        clients.enter_context(traffic.producer(closing.in_the_open))
        eventually(lambda: len(traffic.read) > 10, "records are read")
        traffic.longest_pauses()

        closing.restart_each(lambda _: None, lambda: closing.in_the_open)
        pauses["a plain restart"] = traffic.longest_pauses()

        closing.restart_each(closing.add_secure_listener, lambda: closing.in_the_open)
        closing.add_users_and_rights(closing.in_the_open)
        pauses["another listener"] = traffic.longest_pauses()
        assert "'User:ANONYMOUS'" in closing.would_be_denied()

        with moved(traffic, clients, closing):
            pauses["clients move"] = traffic.longest_pauses()
            assert error_of(closing.as_user(BOB)) is None

            closing.restart_each(closing.remove_open_listener, lambda: closing.as_user(ADMIN))
            pauses["no open listener"] = traffic.longest_pauses()
            said = closing.would_be_denied()
            assert f"'User:{BOB}'" in said
            assert f"'User:{ALICE}'" not in said

            closing.restart_each(closing.enforce_acls, lambda: closing.as_user(ADMIN))
            pauses["ACLs count"] = traffic.longest_pauses()
            closing.assert_closed()
        print(f"longest pauses in seconds: {pauses}")
    assert_nothing_is_lost(traffic, closing)
    for what in ("produce", "consume"):
        limit = pauses["a plain restart"][what] + PAUSE_SECONDS_MORE
        for step, longest in pauses.items():
            assert longest[what] < limit, (step, what, pauses)


def test_a_node_is_closed_and_keeps_what_it_has(tmp_path: Path) -> None:
    """``test_three_nodes_are_closed_while_clients_go_on`` in small, with its last steps in one."""
    node = NodeProcess(tmp_path / "node")
    closing = Closing([node], Authority(tmp_path / "authority"))
    closing.add_secure_listener(node)
    with node:
        assert error_of(closing.in_the_open) is None  # creates the topic
        closing.add_users_and_rights(closing.in_the_open)
        for settings in (closing.in_the_open, closing.as_user(ALICE), closing.as_user(BOB)):
            assert error_of(settings) is None
        said = closing.would_be_denied()
        assert "'User:ANONYMOUS'" in said
        assert f"'User:{BOB}'" in said
        assert f"'User:{ALICE}'" not in said

        def close(node: NodeProcess) -> None:
            closing.remove_open_listener(node)
            closing.enforce_acls(node)

        closing.restart_each(close, lambda: closing.as_user(ADMIN))
        closing.assert_closed()
        consumer = Consumer({**closing.as_user(ALICE), "group.id": GROUP})
        _, end = consumer.get_watermark_offsets(TopicPartition(TOPIC, 0), SECONDS_MAX)
        consumer.close()
        assert end == 5


def test_the_page_has_the_settings_of_these_steps(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "upgrade-to-closed.md").read_text()
    steps = page.split("\n## ")[1:]
    node = NodeProcess(tmp_path / "node")
    before = set(node.config)
    closing = Closing([node], Authority(tmp_path / "authority"))
    closing.add_secure_listener(node)
    first = set(re.findall(r"--set ([a-z.]+)=", steps[0]))
    assert first == node.config.keys() - before | {"advertised.listeners"}
    fourth = set(re.findall(r"--set ([a-z.]+)=", steps[3]))
    assert fourth == {"listeners", "advertised.listeners", "listener.security.protocol.map"}


def assert_nothing_is_lost(traffic: Traffic, closing: Closing) -> None:
    """Every record that was acknowledged is read, by a member that goes on if need be."""
    assert traffic.problems == []
    assert len(set(traffic.acked.values())) == len(traffic.acked)
    with traffic.member(closing.as_user(ALICE)):
        eventually(lambda: traffic.acked.items() <= traffic.read.items(), "all records are read")
    offsets: dict[int, list[int]] = {}
    for partition, offset in sorted(traffic.read):
        offsets.setdefault(partition, []).append(offset)
    for found in offsets.values():
        assert found == list(range(len(found)))
