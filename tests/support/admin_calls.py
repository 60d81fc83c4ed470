"""The admin API on a real store, called with the events that API Gateway sends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from tidelog_core.config import NodeConfig
from tidelog_core.metadata.coordination.consumer_groups import (
    ConsumerGroupState,
)
from tidelog_core.metadata.coordination.groups import (
    CommittedOffset,
    GroupMember,
    GroupOffsets,
    GroupRecord,
    shard_of_group,
)
from tidelog_core.metadata.coordination.member_pages import MemberPage
from tidelog_core.metadata.coordination.share_groups import ShareGroupState
from tidelog_core.metadata.endpoints import plaintext_endpoints
from tidelog_core.metadata.records import (
    Broker,
    BrokerLease,
    Cluster,
    Record,
    put,
)
from tidelog_core.metadata.store import MetadataStore, Write
from tidelog_functions.admin.api import AdminApi
from tidelog_functions.admin.cluster import AdminCluster
from tidelog_functions.admin.contract import load_contract
from tidelog_functions.invocation import FunctionSettings

from tests.support.waiting import SECONDS_MAX

IDENTITY = {"iam": {"userArn": "arn:aws:iam::123456789012:user/admin", "userId": "AID"}}
CALLER = "User:arn:aws:iam::123456789012:user/admin"
CALLER_HOST = "203.0.113.7"
BROKERS = (1, 2, 3)


def an_event(
    method: str, path: str, body: object = None, query: Mapping[str, object] | None = None
) -> dict[str, Any]:
    """Return an event of an HTTP API whose caller IAM has authorized."""
    return {
        "version": "2.0",
        "routeKey": "$default",
        "rawPath": path,
        "rawQueryString": urlencode(dict(query or {})),
        "headers": {"content-type": "application/json"},
        "requestContext": {
            "http": {"method": method, "path": path, "sourceIp": CALLER_HOST},
            "stage": "$default",
            "authorizer": IDENTITY,
        },
        "body": None if body is None else json.dumps(body),
        "isBase64Encoded": False,
    }


@dataclass(frozen=True)
class Answered:
    """An answer, its JSON parsed."""

    status: int
    body: Any
    headers: Mapping[str, str]

    @property
    def problem(self) -> tuple[int, str]:
        """The status and the name of Kafka's error."""
        assert self.headers["content-type"] == "application/problem+json"
        assert self.body["status"] == self.status
        return self.status, self.body["error"]


class Api:
    """Calls one cluster's API. Made by ``open_api``."""

    def __init__(self, runner: asyncio.Runner, cluster: AdminCluster) -> None:
        self.runner = runner
        self.cluster = cluster
        self._api = AdminApi(cluster, load_contract(), requires_identity=True)

    def send(self, event: object, *, seconds_max: float = SECONDS_MAX) -> Answered:
        """Answer an event."""
        answer = self.runner.run(self._api.handle(event, seconds_max=seconds_max))
        return Answered(answer["statusCode"], json.loads(answer["body"]), answer["headers"])

    def __call__(self, method: str, path: str, body: object = None, **query: object) -> Answered:
        return self.send(an_event(method, path, body, query))

    def done(self, method: str, path: str, body: object = None, **query: object) -> Any:
        """Return the body of an answer that must be a success."""
        answer = self(method, path, body, **query)
        assert answer.status < 300, answer
        return answer.body

    def commit(self, *writes: Write) -> None:
        """Write to the store, as the cluster's nodes would."""
        self.runner.run(self.cluster.store.commit(writes))


@contextmanager
def open_api(
    metadata_url: str, *, objects_url: str = "memory:", node_config: NodeConfig | None = None
) -> Iterator[Api]:
    """The API on the store."""
    settings = FunctionSettings(
        metadata_url=metadata_url,
        objects_url=objects_url,
        node_config=NodeConfig() if node_config is None else node_config,
    )
    with asyncio.Runner() as runner:
        cluster = AdminCluster.open(settings)
        try:
            yield Api(runner, cluster)
        finally:
            runner.run(cluster.close())


async def register_brokers(store: MetadataStore) -> None:
    """Register three brokers, the third of which has left the cluster."""
    await store.commit([put(Cluster(cluster_id="c1"))])
    for broker_id in BROKERS:
        incarnation = UUID(int=broker_id)
        broker = Broker(
            broker_id=broker_id,
            incarnation=incarnation,
            endpoints=plaintext_endpoints(f"node{broker_id}", 9092),
            rack=f"rack{broker_id}",
        )
        lease = BrokerLease(
            broker_id=broker_id, incarnation=incarnation, counter=0 if broker_id == 3 else 7
        )
        await store.commit([put(broker), put(lease, is_logged=False)])


@contextmanager
def new_cluster(folder: Path, **options: Any) -> Iterator[Api]:
    """The API on a new SQLite store with three brokers."""
    with open_api(f"sqlite://{folder}/metadata.db", **options) as api:
        api.runner.run(register_brokers(api.cluster.store))
        yield api


def put_group(
    api: Api,
    group_id: str,
    *,
    members: tuple[GroupMember, ...] = (),
    consumer: ConsumerGroupState | None = None,
    share: ShareGroupState | None = None,
    offset: int = 5,
) -> None:
    phase = "Stable" if members or (share is not None and share.members) else "Empty"
    record = GroupRecord(
        shard=shard_of_group(group_id, GROUP_SHARDS),
        group_id=group_id,
        phase=phase if consumer is None else "Reconciling",
        phase_since_ms=1,
        generation=3,
        protocol_type="consumer" if share is None else "share",
        protocol_name="range" if members else None,
        leader=members[0].member_id if members else None,
        members=members,
        consumer=consumer,
        share=share,
    )
    page = GroupOffsets(
        group_id=group_id,
        topic="t",
        topic_id=topic_id(api, "t"),
        page=0,
        partitions={0: CommittedOffset(offset, 2, "note", 9)},
    )
    of_members = MemberPage(
        shard=record.shard,
        group_id=group_id,
        number=0,
        stamp=0,
        members=dict(enumerate(record.all_members)),
    )
    items: tuple[Record, ...] = (record, of_members, page)
    api.commit(*(put(item, is_logged=False) for item in items))


GROUP_SHARDS = 4


def topic_id(api: Api, name: str) -> UUID:
    return UUID(api.done("GET", f"/topics/{name}")["topic_id"])
