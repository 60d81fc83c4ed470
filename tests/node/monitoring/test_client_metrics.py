"""Logins, denials and share groups in the metrics."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from tests.support.acl_rules import CLIENT, WITH_ACLS, leave_to_admin
from tests.support.batches import batch
from tests.support.http_pages import scrape
from tests.support.node_process import NodeProcess
from tests.support.peer import Peer
from tests.support.sasl_node import PASSWORD, USER, SaslNode
from tests.support.share_member import ShareMember, make_group

SECONDS_MAX = 30.0


def test_logins_are_counted_by_listener(tmp_path: Path) -> None:
    node = SaslNode(tmp_path / "node", connection_failed_authentication_delay_ms="0")
    node.arguments += ("--http-port", "0")
    with node:
        node.prepare()
        for password in (PASSWORD, "wrong"):
            settings = {
                "bootstrap.servers": node.sasl_address,
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "SCRAM-SHA-256",
                "sasl.username": USER,
                "sasl.password": password,
            }
            admin = AdminClient(settings)
            if password == PASSWORD:
                admin.list_topics(timeout=SECONDS_MAX)
            else:
                with pytest.raises(KafkaException):
                    admin.list_topics(timeout=1)
        scraped = scrape(node.http_address)
        assert scraped.value("tidelog_security_logins_total", listener="SASL") >= 1
        assert scraped.value("tidelog_security_logins_refused_total", listener="SASL") >= 1
        assert scraped.value("tidelog_security_logins_total", listener="OPEN") == 0


def test_denials_are_counted(tmp_path: Path) -> None:
    arguments = ("--http-port", "0")
    with NodeProcess(tmp_path / "node", config=WITH_ACLS, arguments=arguments) as node:
        admin = Peer("tidelog", node.port)
        admin.create_topic("orders")
        leave_to_admin(admin)
        client = Peer("tidelog", node.port, address=CLIENT)
        before = scrape(node.http_address)
        client.produce("orders", batch(1))
        client.close()
        admin.close()
        after = scrape(node.http_address)
    denials, errors = "tidelog_security_denials_total", "tidelog_kafka_request_errors_total"
    assert after.value(denials) > before.value(denials)
    refused = after.value(errors, api="produce", error="TOPIC_AUTHORIZATION_FAILED")
    assert refused == before.value(errors, api="produce") + 1


def test_what_share_groups_fetch_is_counted(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "node", arguments=("--http-port", "0")) as node:
        peer = Peer("tidelog", node.port)
        peer.create_topic("shared")
        peer.produce("shared", batch(3))
        peer.close()
        admin = AdminClient({"bootstrap.servers": node.address})
        entry = ConfigEntry(
            "share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET
        )
        resource = ConfigResource(ConfigResource.Type.GROUP, "g", incremental_configs=[entry])
        admin.incremental_alter_configs([resource])[resource].result(SECONDS_MAX)
        make_group(node.port, "g", "shared")
        with ShareMember(node.port, "g", "member", "shared") as member:
            member.fetch(max_wait_ms=5_000)
        scraped = scrape(node.http_address)
    moved = "tidelog_kafka_request_bytes_total"
    produced = scraped.value(moved, topic="shared", request="produce")
    assert scraped.value(moved, topic="shared", request="consume") == produced > 0
    assert scraped.value("tidelog_kafka_consumer_groups", type="share") == 1
