"""Brokers, leases and partitions that tests of replication begin with."""

from __future__ import annotations

import dataclasses
from uuid import UUID

from tidelog_core.metadata.endpoints import plaintext_endpoints
from tidelog_core.metadata.records import AckedBy, Broker, BrokerLease, Partition, StepDownReason
from tidelog_core.replication.leader.leader_state import LeaderState
from tidelog_core.replication.leader.rules import ReplicationRules
from tidelog_core.replication.leases.lease_times import LeaseTimes
from tidelog_core.replication.leases.peer_leases import PeerLeases

TOPIC_ID = UUID(int=1)
TIMES = LeaseTimes(lease_ms=9_000, renew_ms=3_000)
LAG_MS = 30_000


def make_partition(
    replicas: tuple[int, ...] = (1, 2, 3),
    *,
    leader: int = 1,
    epoch: int = 5,
    isr: tuple[int, ...] | None = None,
    adding: tuple[int, ...] = (),
    removing: tuple[int, ...] = (),
    version: int = 7,
) -> Partition:
    return Partition(
        topic_id=TOPIC_ID,
        partition=0,
        replicas=replicas,
        leader=leader,
        leader_epoch=epoch,
        isr=replicas if isr is None else isr,
        adding=adding,
        removing=removing,
        version=version,
    )


def make_lease(
    broker_id: int,
    counter: int = 1,
    *,
    version: int | None = None,
    reason: StepDownReason | None = None,
) -> BrokerLease:
    return BrokerLease(
        broker_id=broker_id,
        incarnation=UUID(int=broker_id),
        counter=counter,
        step_down_reason=reason,
        version=counter if version is None else version,
    )


def make_brokers(*broker_ids: int, version: int = 1) -> dict[int, Broker]:
    return {
        broker_id: Broker(
            broker_id=broker_id,
            incarnation=UUID(int=broker_id),
            endpoints=plaintext_endpoints("", 0),
            version=version,
        )
        for broker_id in broker_ids
    }


def make_peers(
    *,
    live: tuple[int, ...] = (),
    dead: tuple[int, ...] = (),
    full: tuple[int, ...] = (),
    draining: tuple[int, ...] = (),
) -> PeerLeases:
    """Return leases in which ``dead`` have not moved for a whole lease; all others live."""
    peers = PeerLeases(TIMES)
    peers.observe([make_lease(b) for b in dead], started_ms=0, now_ms=0)
    earlier_ms = TIMES.lease_ms - 500
    peers.observe(
        [make_lease(b) for b in (*dead, *live, *full, *draining)],
        started_ms=earlier_ms,
        now_ms=earlier_ms,
    )
    leases = [make_lease(b) for b in dead] + [make_lease(b, 2) for b in live]
    leases += [make_lease(b, 2, reason=StepDownReason.DISK) for b in full]
    leases += [make_lease(b, 2, reason=StepDownReason.DRAINING) for b in draining]
    peers.observe(leases, started_ms=TIMES.lease_ms, now_ms=TIMES.lease_ms)
    return peers


def make_leader(
    partition: Partition | None = None,
    *,
    log_end_offset: int = 0,
    high_watermark: int = 0,
    min_insync_replicas: int = 1,
    commits_by_chain: bool = False,
) -> LeaderState[str]:
    partition = make_partition() if partition is None else partition
    if commits_by_chain:
        partition = dataclasses.replace(partition, acked_by=AckedBy.CHAIN)
    return LeaderState(
        partition,
        log_end_offset=log_end_offset,
        high_watermark=high_watermark,
        rules=ReplicationRules(
            min_insync_replicas=min_insync_replicas,
            lag_time_max_ms=LAG_MS,
        ),
        now_ms=0,
    )


def fetch(
    leader: LeaderState[str],
    follower_id: int,
    offset: int,
    *,
    now_ms: float = 0,
    replica_epoch: int = 1,
    is_fed: bool | None = None,
) -> bool:
    """Let the follower fetch; unless ``is_fed`` says otherwise it knows what the leader knows."""
    return leader.on_fetch(
        follower_id,
        offset,
        replica_epoch=replica_epoch,
        log_start_offset=0,
        now_ms=now_ms,
        is_fed=leader.commits_by_chain if is_fed is None else is_fed,
    )
