"""Simulates a day step by step: load, segments, retention and failures, with their costs.

Rates are constant within a step. Leases, elections and ISRs take seconds, at most about a step:
they happen between two steps, and ``contention`` computes the duration of the writes. Seeded; the
same scenario gives the same day.
"""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
from tidelog_core.metadata.store import COMMIT_WRITES_MAX
from tidelog_core.metadata.stores.dynamodb_units import transaction_write_units
from tidelog_core.replication.leases.lease_times import LeaseTimes

from bench.day import contention, flows, table_load
from bench.day.cluster import Bools, Cluster, Floats, Ints, any_replica, build, total_by
from bench.day.hours import Day, Event, Hour
from bench.day.operations import COSTS
from bench.day.scenario import (
    DAY_S,
    GB,
    HOUR_S,
    LOCAL_RETENTION_S,
    NODE,
    REPLICAS,
    TOPIC,
    Scenario,
)
from bench.day.table_load import Load
from bench.day.troubles import Trouble, troubles

STEP_S = 10.0
SEGMENT_GB = TOPIC.segment_bytes / GB
BURST_MEMORY_S = 60.0  # duration of a topic's burst
PREFERRED_AFTER_S = NODE.leader_imbalance_check_interval_seconds
CATCH_UP_SHARE = 0.5  # of the unused network of a machine
LEASE_S = LeaseTimes().lease_ms / 1000
PER_TRANSACTION = COMMIT_WRITES_MAX - 1  # beside the check of the dead leader's lease
CHUNK_GB = NODE.remote_chunk_bytes / GB
LIST_PAGE_KEYS = 1000


def diurnal(scenario: Scenario, second: float) -> float:
    """Return the load at this time of the day, relative to the mean; the peak is at 15:00."""
    phase = 2 * math.pi * (second / HOUR_S - 15.0) / 24
    return 1 + (scenario.peak_factor - 1) * math.cos(phase)


def simulate(scenario: Scenario, *, step_s: float = STEP_S) -> Day:
    """Return the scenario's day."""
    return _Simulation(scenario, step_s).run()


class _Simulation:
    """The state between two steps."""

    def __init__(self, scenario: Scenario, step_s: float) -> None:
        self._scenario = scenario
        self._step_s = step_s
        self._cluster: Cluster = build(scenario)
        self._random = np.random.default_rng(scenario.seed + 1)
        brokers, partitions = self._cluster.broker_count, scenario.partitions
        self._alive: Bools = np.ones(brokers, bool)
        self._in_sync: Bools = np.ones((partitions, REPLICAS), bool)
        self._leader: Ints = self._cluster.replicas[:, 0].copy()
        self._placement: flows.Placement | None = None  # until the next change
        self._is_handing_back = False  # some leaders are back, others are not yet
        self._missing: Floats = np.zeros((partitions, REPLICAS))  # GB that a replica lacks
        self._in_sync_since: Floats = np.full((partitions, REPLICAS), -np.inf)
        self._active: Floats = self._random.random(partitions) * SEGMENT_GB
        self._expiring: Floats = self._random.random(partitions) * SEGMENT_GB
        self._expired: Ints = np.zeros(partitions, np.int64)  # since the last round of retention
        self._uploads: Floats = np.zeros(brokers)  # GB that wait for the tier worker
        self._bursts: Floats = np.zeros(scenario.topics)
        self._rates: Floats = np.zeros(partitions)
        self._list_units: Floats = table_load.segment_list_units(scenario, self._cluster)
        self._round_of: Ints = self._random.integers(0, self._steps_per_round, brokers)
        self._stored_gb = scenario.stored_gb
        self._to_come = troubles(scenario, self._cluster)
        self._hours = [Hour() for _ in range(24)]
        self._events: list[Event] = []

    @property
    def _steps_per_round(self) -> int:
        return max(1, round(table_load.RETENTION_ROUND_S / self._step_s))

    def run(self) -> Day:
        """Simulate all steps."""
        for number in range(int(DAY_S / self._step_s)):
            self._step(number, number * self._step_s)
        return Day(self._scenario, self._hours, self._events)

    def _step(self, number: int, now: float) -> None:
        hour = self._hours[int(now // HOUR_S)]
        self._troubles(now, hour)
        rates = self._next_rates(now)
        found = self._current_placement().flows(rates)
        led = self._leader >= 0
        self._catch_up(found, rates, now, hour)
        self._tier(found, np.where(led, rates, 0.0), hour)
        self._cold_reads(found, now, hour)
        self._retain(number, now, hour)
        self._metadata(hour)
        self._account(found, float(rates[led].sum()), hour)

    def _current_placement(self) -> flows.Placement:
        if self._placement is None:
            self._placement = flows.Placement(
                self._scenario, self._cluster, self._leader, self._alive
            )
        return self._placement

    def _next_rates(self, now: float) -> Floats:
        """Return the produced bytes, GB/s by partition."""
        scenario = self._scenario
        keep = math.exp(-self._step_s / BURST_MEMORY_S)
        fresh = self._random.standard_normal(scenario.topics) * math.sqrt(1 - keep * keep)
        self._bursts = keep * self._bursts + fresh
        noise = np.exp(scenario.burst * self._bursts - scenario.burst**2 / 2)
        total = scenario.produced_gb_per_s * diurnal(scenario, now)
        self._rates = self._cluster.share * total * np.repeat(noise, scenario.partitions_per_topic)
        return self._rates

    # -- failures --

    def _troubles(self, now: float, hour: Hour) -> None:
        for trouble in self._to_come:
            if trouble.from_s <= now < trouble.from_s + self._step_s:
                self._fail(trouble, now, hour)
            until_s = trouble.from_s + trouble.lasts_s
            if until_s <= now < until_s + self._step_s:
                self._return(trouble, now)
        self._hand_back(now, hour)

    def _fail(self, trouble: Trouble, now: float, hour: Hour) -> None:
        who = trouble.who
        before = self._leader
        self._placement = None
        self._alive = self._alive & ~who
        dead = who[self._cluster.replicas]
        shrunk = any_replica(dead & self._in_sync)
        self._in_sync &= ~dead
        self._leader = flows.lead(self._cluster, self._alive, self._in_sync)
        moved = (before != self._leader) & shrunk
        outcome = self._write_partitions(shrunk, hour, by_one=True)
        gained = np.bincount(
            self._leader[moved & (self._leader >= 0)], minlength=self._cluster.broker_count
        )
        self._note(
            now,
            f"{trouble.what} is gone ({int(who.sum())} nodes): {int(moved.sum())} partitions change"
            " leader,"
            f" the most to one node {int(gained.max())}, {int((self._leader < 0).sum())} have none;"
            f" {outcome.written} commits of {outcome.transactions} transactions are in"
            f" {LEASE_S + outcome.last_at_s:.1f} s after the last renewal",
        )

    def _write_partitions(
        self, changed: Bools, hour: Hour, *, by_one: bool = False
    ) -> contention.Outcome:
        """Account for one logged commit of every leader with changed partitions.

        After a failure one broker writes all changes (``by_one``), in transactions of full size.
        """
        leaders = self._leader[changed & (self._leader >= 0)]
        by_leader = Counter(leaders.tolist())
        each = [len(leaders)] if by_one else by_leader.values()
        outcome = contention.burst(
            [math.ceil(count / PER_TRANSACTION) for count in each],
            latency_s=self._scenario.table_change_latency_s,
            read_latency_s=self._scenario.table_read_latency_s,
            seed=self._scenario.seed,
        )
        keys = len(leaders) / max(1, outcome.written)
        one, many = COSTS["take 1 partition over"], COSTS["take 24 partitions over"]
        # The new entry, and the removal of the oldest.
        entry = 2 * transaction_write_units(math.ceil(table_load.changelog_entry_bytes(keys)))
        units = one.writes - one.write_units["#changelog"] + entry
        units += (keys - 1) * (many.write_units["partition"] - one.write_units["partition"]) / 23
        load = Load()
        load.writes["leadership and ISRs"] = outcome.transactions * units
        load.reads["leadership and ISRs"] = outcome.version_reads
        alive = int(self._alive.sum())
        load.reads["changes"] = outcome.written * alive * (1 + keys)
        hour.load.add(load)
        hour.logged_commits += outcome.written
        seconds = max(1.0, outcome.last_at_s)
        cluster = one.write_units["#cluster"]
        hour.key_writes_peak.raise_to(
            {
                "#cluster": outcome.transactions * cluster / seconds,
                "#changelog": outcome.transactions * entry / seconds,
            }
        )
        return outcome

    def _return(self, trouble: Trouble, now: float) -> None:
        """Restart brokers as followers that lack newer records, or all local ones."""
        who = trouble.who
        self._placement = None
        self._alive = self._alive | who
        back = who[self._cluster.replicas] & ~self._in_sync
        if not trouble.keeps_disk:
            # A new replica starts at the tier's end: it fetches the records that are not tiered.
            self._missing = np.where(back, self._active[:, None], self._missing)
        self._leader = flows.lead(self._cluster, self._alive, self._in_sync)
        self._note(
            now, f"{trouble.what} is back and fetches {float(self._missing[back].sum()):,.0f} GB"
        )

    def _hand_back(self, now: float, hour: Hour) -> None:
        """Move leadership back to preferred leaders that have been in sync for long enough."""
        preferred = self._cluster.replicas[:, 0]
        stable = self._in_sync[:, 0] & (now - self._in_sync_since[:, 0] >= PREFERRED_AFTER_S)
        due = stable & (self._leader != preferred) & self._alive[preferred]
        if due.any():
            self._write_partitions(due, hour)
            self._leader = np.where(due, preferred, self._leader)
            self._placement = None
            if not self._is_handing_back:
                self._note(now, "partitions begin to return to preferred leaders")
            self._is_handing_back = bool((self._leader != preferred).any())

    def _catch_up(self, found: flows.Flows, rates: Floats, now: float, hour: Hour) -> None:
        """Let lagging replicas fetch with the unused network of their machines."""
        replicas, scenario = self._cluster.replicas, self._scenario
        out_of_sync = ~self._in_sync
        if not out_of_sync.any():
            return
        away = out_of_sync & ~self._alive[replicas]
        self._missing += np.where(away, rates[:, None] * self._step_s, 0.0)
        behind = out_of_sync & self._alive[replicas] & (self._leader >= 0)[:, None]
        if not behind.any():
            return
        wanted = np.where(behind, self._missing, 0.0) / self._step_s
        brokers = self._cluster.broker_count
        source = np.repeat(np.maximum(self._leader, 0)[:, None], REPLICAS, axis=1)
        limit_in = self._left(found.received)[self._cluster.machine_of[replicas]]
        limit_out = self._left(found.sent)[self._cluster.machine_of[source]]
        machines_in = self._cluster.by_machine(total_by(replicas, wanted, brokers))
        machines_out = self._cluster.by_machine(total_by(source, wanted, brokers))
        with np.errstate(divide="ignore", invalid="ignore"):
            fit_in = limit_in / machines_in[self._cluster.machine_of[replicas]]
            fit_out = limit_out / machines_out[self._cluster.machine_of[source]]
        share = np.clip(np.nan_to_num(np.minimum(fit_in, fit_out), nan=0.0, posinf=1.0), 0.0, 1.0)
        fetched = wanted * share
        self._missing -= fetched * self._step_s
        found.received[:] += total_by(replicas, fetched, brokers)
        found.sent[:] += total_by(source, fetched, brokers)
        cores = fetched * scenario.cpu.follower_gb
        found.broker_cores[:] += total_by(replicas, cores, brokers)
        found.across["catching up"] = float(fetched.sum())
        done = behind & (self._missing < 1e-6)
        if done.any():
            self._missing[done] = 0.0
            self._in_sync |= done
            self._in_sync_since[done] = now
            self._write_partitions(any_replica(done), hour)
            if not (~self._in_sync).any():
                self._note(now, "every replica is in sync")

    def _left(self, used: Floats) -> Floats:
        """Return the network that catching up may use, GB/s by machine."""
        free = self._scenario.machine.network_gb_per_s - self._cluster.by_machine(used)
        return np.maximum(free, 0.0) * CATCH_UP_SHARE

    def _note(self, now: float, what: str) -> None:
        self._events.append(Event(now / HOUR_S, what))

    # -- the tier --

    def _tier(self, found: flows.Flows, rates: Floats, hour: Hour) -> None:
        """Seal full segments, upload sealed ones, with as many concurrent PUTs as allowed."""
        scenario, brokers = self._scenario, self._cluster.broker_count
        self._active += rates * self._step_s
        sealed = np.floor(self._active / SEGMENT_GB)
        self._active -= sealed * SEGMENT_GB
        leader = np.maximum(self._leader, 0)
        self._uploads += total_by(leader, sealed * SEGMENT_GB, brokers)
        at_once = np.minimum(NODE.remote_upload_concurrency, np.ceil(self._uploads / SEGMENT_GB))
        sent = np.minimum(at_once * scenario.s3_connection_gb_per_s, self._uploads / self._step_s)
        self._uploads -= sent * self._step_s
        found.sent[:] += sent
        found.worker_cores[:] += sent * scenario.cpu.tiered_gb
        count = int(sealed.sum())
        self._stored_gb += count * SEGMENT_GB
        hour.copied += count
        hour.requests["PUT of segments and indexes"] += (
            count * COSTS["upload a segment"].requests["PUT"]
        )
        hour.load.add(table_load.segments_load(count, 0))
        # One event per index object; followers list once per segment before they evict it.
        hour.function_calls += count
        lists = float((sealed * self._list_units).sum())
        hour.load.add(table_load.functions_load(lists, count))
        hour.load.reads["followers' evictions"] += (
            (REPLICAS - 1) * count * table_load.eviction_units()
        )

    def _cold_reads(self, found: flows.Flows, now: float, hour: Hour) -> None:
        """Add a backfill through the nodes, spread over the leaders by their shares."""
        scenario = self._scenario
        if not scenario.cold_read_from_h * HOUR_S <= now < scenario.cold_read_to_h * HOUR_S:
            return
        total = scenario.cold_read_gb_per_s
        led = self._leader >= 0
        weights = np.where(led, self._cluster.share, 0.0)
        read = total_by(np.maximum(self._leader, 0), weights, self._cluster.broker_count) * total
        found.received[:] += read
        found.sent[:] += read
        found.worker_cores[:] += read * scenario.cpu.cold_gb
        found.across["cold reads"] = total * flows.PRODUCED_ELSEWHERE
        gb = total * self._step_s
        hour.requests["GET by nodes"] += gb / CHUNK_GB + gb / SEGMENT_GB

    def _retain(self, number: int, now: float, hour: Hour) -> None:
        """Expire segments of a week ago; each node applies retention every five minutes."""
        scenario = self._scenario
        total = scenario.produced_gb_per_s * diurnal(scenario, now)
        self._expiring += self._cluster.share * total * self._step_s
        expired = np.floor(self._expiring / SEGMENT_GB)
        self._expiring -= expired * SEGMENT_GB
        self._expired += expired.astype(np.int64)
        leader = np.maximum(self._leader, 0)
        checks = (self._round_of[leader] == number % self._steps_per_round) & (self._leader >= 0)
        due = checks & (self._expired > 0)
        moves, deleted = int(due.sum()), int(self._expired[due].sum())
        self._expired[due] = 0
        self._stored_gb -= deleted * SEGMENT_GB
        hour.deleted += deleted
        hour.logged_commits += moves
        hour.load.add(table_load.log_starts_load(moves))
        hour.load.add(table_load.segments_load(0, deleted))
        alive = int(self._alive.sum())
        hour.load.add(table_load.changes_load(alive, moves / self._step_s, 1.0), self._step_s)
        hour.requests["PUT of log starts"] += moves
        hour.requests["DELETE (free)"] += 2 * deleted + moves
        if now % scenario.function_schedule_s < self._step_s:
            hour.function_calls += 1
            hour.load.add(
                table_load.functions_load(float(self._list_units.sum()), len(self._list_units) / 4)
            )
        if now == 0:
            objects = 2 * self._stored_gb / SEGMENT_GB + scenario.partitions
            hour.requests["LIST by the scrub"] += objects / LIST_PAGE_KEYS
            hour.load.reads["scrub"] += float(self._list_units.sum()) + scenario.partitions

    # -- sums --

    def _metadata(self, hour: Hour) -> None:
        alive = int(self._alive.sum())
        load = table_load.idle_load(self._scenario, alive)
        load.add(table_load.client_load(self._scenario))
        hour.load.add(load, self._step_s)
        hour.key_writes_peak.raise_to(load.key_writes)
        hour.key_reads_peak.raise_to(load.key_reads)

    def _account(self, found: flows.Flows, produced: float, hour: Hour) -> None:
        scenario, step_s = self._scenario, self._step_s
        sent, received = (
            self._cluster.by_machine(found.sent),
            self._cluster.by_machine(found.received),
        )
        hour.produced_gb += produced * step_s
        hour.sent_gb += float(sent.sum()) * step_s
        hour.received_gb += float(received.sum()) * step_s
        for why, rate in found.across.items():
            hour.across_gb[why] += rate * step_s
        hour.core_seconds += float((found.broker_cores + found.worker_cores).sum()) * step_s
        hour.machine_out_peak = max(hour.machine_out_peak, float(sent.max()))
        hour.machine_in_peak = max(hour.machine_in_peak, float(received.max()))
        hour.broker_cores_peak = max(hour.broker_cores_peak, float(found.broker_cores.max()))
        over = np.maximum(sent, received) > scenario.machine.network_gb_per_s
        hour.over_network_s += float(over.sum()) * step_s
        hour.requests["GET by Spark"] += produced * step_s * scenario.spark_read_share / CHUNK_GB
        hour.stored_gb = self._stored_gb
        local = local_gb(self._cluster, self._active, self._rates)
        hour.local_gb_peak = max(hour.local_gb_peak, float(local.max()))


def local_gb(cluster: Cluster, active: Floats, rates: Floats) -> Floats:
    """Return the bytes on each machine's disk, GB: active segments, and an hour of sealed ones.

    A sealed segment is deleted when its newest record is an hour old: half a segment more on
    average.
    """
    each = active + rates * LOCAL_RETENTION_S + SEGMENT_GB / 2
    of_replicas = np.repeat(each[:, None], REPLICAS, axis=1)
    return cluster.by_machine(total_by(cluster.replicas, of_replicas, cluster.broker_count))
