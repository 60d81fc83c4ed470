"""Decides, for a leader, which members leave the ISR.

A replica leaves when it has not been caught up for ``lag_time_max_ms``; or when its lease has
expired (``election_coordinators`` write that for all leaders, so the leader first waits for them);
or when it reports a full or failed disk, and is behind, or has not fetched from this leader within
``hand_over_ms``. A silent replica that has the whole log stays until its lease expires.

A replica that is draining leaves as soon as it is behind, so that nothing waits for it once it has
stopped, but only if ``min_insync_replicas`` remain: until it stops, its copy lets the partition
take records.
"""

from __future__ import annotations

from collections.abc import Set

from tidelog_core.metadata.records import StepDownReason
from tidelog_core.replication.leader.led_log import LedLog
from tidelog_core.replication.leases.peer_leases import PeerLeases


def leaving_members(led: LedLog, peers: PeerLeases, now_ms: float) -> list[int]:
    """Return the members of the ISR that leave it now; the leader is never one."""
    isr = led.partition.isr
    leaving = [member for member in isr if _is_out_of_sync(member, led, peers, now_ms)]
    spare_count = len(isr) - len(leaving) - led.required_count
    leaving += _draining(set(isr) - set(leaving), led, peers)[: max(0, spare_count)]
    return leaving


def _is_out_of_sync(member: int, led: LedLog, peers: PeerLeases, now_ms: float) -> bool:
    if member == led.partition.leader:
        return False
    follower = led.followers.get(member)
    if follower is None or peers.is_left_to_leaders(member, now_ms):
        return True
    lag_ms = led.rules.lag_time_max_ms
    if peers.step_down_reason(member) is StepDownReason.DISK:
        if led.is_behind(follower):
            return True
        lag_ms = min(lag_ms, led.rules.hand_over_ms)
    return not follower.is_caught_up(led.followable_end, now_ms, lag_ms)


def _draining(members: Set[int], led: LedLog, peers: PeerLeases) -> list[int]:
    """Return the members that are about to stop and are behind."""
    return [
        follower_id
        for follower_id, follower in led.followers.items()
        if follower_id in members
        and peers.step_down_reason(follower_id) is StepDownReason.DRAINING
        and led.is_behind(follower)
    ]
