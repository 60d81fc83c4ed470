"""Computes every broker's bytes and CPU time at one moment, from leaders and live brokers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bench.day.cluster import Bools, Cluster, Floats, Ints, total_by
from bench.day.scenario import GB, NODE, Scenario

IDLE_FETCHES_PER_S = 1000 / NODE.replica_fetch_wait_max_ms
PRODUCED_ELSEWHERE = 2 / 3  # producers are spread evenly over zones and ignore leaders' zones


@dataclass(frozen=True, slots=True)
class Flows:
    """GB/s and cores by broker; GB/s between zones by cause. The tier's share is added later."""

    received: Floats
    sent: Floats
    broker_cores: Floats  # of the node itself, at most one
    worker_cores: Floats  # of its tier worker
    across: dict[str, float]


def lead(cluster: Cluster, alive: Bools, in_sync: Bools) -> Ints:
    """Return each partition's leader, -1 if it has none.

    It is the first live member of the ISR in replica order.
    """
    able = alive[cluster.replicas] & in_sync
    first = able.argmax(axis=1)
    leader = np.take_along_axis(cluster.replicas, first[:, None], axis=1)[:, 0]
    return np.where(able.any(axis=1), leader, -1)


class Placement:
    """Leaders and live brokers, and their flows at any rates."""

    def __init__(self, scenario: Scenario, cluster: Cluster, leader: Ints, alive: Bools) -> None:
        self._scenario = scenario
        self._brokers = cluster.broker_count
        self._led = leader >= 0
        self._leader = np.where(self._led, leader, 0)
        follows = alive[cluster.replicas] & (cluster.replicas != self._leader[:, None])
        follows &= self._led[:, None]
        # Of each follower's replica: its partition, its broker, and the pair with the leader.
        self._followed, place = np.nonzero(follows)
        self._follower = cluster.replicas[self._followed, place]
        pairs = self._leader[self._followed] * self._brokers + self._follower
        distinct, self._pair = np.unique(pairs, return_inverse=True)
        self._pair_leader, self._pair_follower = np.divmod(distinct, self._brokers)
        self._entries = np.bincount(self._pair, minlength=len(distinct)).astype(float)
        self._sources = [
            self._source(cluster, alive, cluster.reader_zone[:, reader])
            for reader in range(scenario.readers)
        ]
        self._is_far = [
            cluster.zone_of[source] != cluster.reader_zone[:, reader]
            for reader, source in enumerate(self._sources)
        ]

    def _source(self, cluster: Cluster, alive: Bools, wanted: Ints) -> Ints:
        """Return the broker that serves each partition's consumer in the wanted zone."""
        if not self._scenario.consumers_fetch_closest:
            return self._leader
        near = (cluster.zone_of[cluster.replicas] == wanted[:, None]) & alive[cluster.replicas]
        place = near.argmax(axis=1)
        closest = np.take_along_axis(cluster.replicas, place[:, None], axis=1)[:, 0]
        return np.where(near.any(axis=1), closest, self._leader)

    def flows(self, rates: Floats) -> Flows:
        """Return the flows if producers send ``rates``, GB/s by partition."""
        scenario, cpu = self._scenario, self._scenario.cpu
        rates = np.where(self._led, rates, 0.0)
        produced = self._sum(self._leader, rates)
        followed = rates[self._followed]
        followers = self._sum(self._follower, followed)
        to_followers = self._sum(self._leader[self._followed], followed)
        consumed = np.zeros(self._brokers)
        reader_across = 0.0
        for source, is_far in zip(self._sources, self._is_far, strict=True):
            consumed += self._sum(source, rates)
            reader_across += float(rates[is_far].sum())
        fetches = self._fetches(followed * GB / scenario.batch_bytes)
        named = fetches * self._entries
        # A consumer fetches each batch separately: its few partitions have different leaders.
        requests = (produced + consumed) * GB / scenario.batch_bytes
        broker_cores = (
            produced * cpu.leader_gb
            + followers * cpu.follower_gb
            + consumed * cpu.consumed_gb
            + (requests + self._sum(self._pair_leader, fetches)) * cpu.leader_request
            + self._sum(self._pair_follower, fetches) * cpu.follower_request
            + self._sum(self._pair_leader, named) * cpu.fetch_entry
            + self._sum(self._pair_follower, named) * cpu.fetch_entry
        )
        return Flows(
            received=produced + followers,
            sent=to_followers + consumed,
            broker_cores=broker_cores,
            worker_cores=np.zeros(self._brokers),
            across={
                "producers": float(rates.sum()) * PRODUCED_ELSEWHERE,
                # Each zone has one replica: all followers are in other zones.
                "followers": float(followed.sum()),
                "consumers": reader_across,
            },
        )

    def _fetches(self, batches: Floats) -> Floats:
        """Return fetches per second by pair: one at a time for all of a leader's partitions.

        A fetch waits for the next batch and takes a cycle. Batches that arrive in this time are in
        the next fetch. A fetch that finds nothing new also ends.
        """
        cpu = self._scenario.cpu
        cycle_s = (
            self._scenario.zone_round_trip_s
            + cpu.leader_request
            + cpu.follower_request
            + 2 * cpu.fetch_entry * self._entries
        )
        arriving = np.bincount(self._pair, batches, len(self._entries))
        waiting = np.maximum(arriving, IDLE_FETCHES_PER_S)
        return waiting / (1 + waiting * cycle_s)

    def _sum(self, brokers: Ints, values: Floats) -> Floats:
        return total_by(brokers, values, self._brokers)
