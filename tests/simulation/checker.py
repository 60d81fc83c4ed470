"""What must always hold, checked at the moment it could break.

``committed`` is the history: offset → entry, as the first high watermark that passed the
offset fixed it. Everything else is held against it:

1. a record acknowledged with acks=all is in the history, and a new leader's log has all of
   the history that it has locally; so has every replica in the end;
2. no high watermark, of any replica, passes an offset that holds other bytes;
3. a broker that does not lead the stored epoch acknowledges nothing and serves no reads as
   leader (it may not know yet that an epoch of its own has begun since a replica was taken
   out); at most one broker leads in an epoch;
4. a leader's high watermark never goes back; consumers read the history and nothing else;
5. an idempotent producer's records are in the history once and in order;
6. the two ends of a fetch session agree on what it has and from where on, and in the end every follower
   knows of all that is committed.

An unclean election, or the restart of the last ISR member after it lost its disk's tail,
may lose records: the history is cut to what the new leader has, and 4 is not asked again.
"""

from __future__ import annotations

from collections.abc import Callable

from tidelog_core.metadata.records import Partition
from tidelog_core.replication.tier_start import TruncateFully

from tests.support.sim_log import NOT_IDEMPOTENT, Entry, Payload, SimLog


class Violation(AssertionError):
    """Something that must always hold did not."""


class Checker:
    """Sees everything at once, which nobody in the simulation does."""

    def __init__(self, stored: Callable[[], Partition], *, is_unclean_allowed: bool) -> None:
        self._stored = stored
        self._is_unclean_allowed = is_unclean_allowed
        self.committed: list[Entry] = []
        self.is_lossy = False
        self.acked_all: dict[Payload, int] = {}
        self.acked_one = 0
        self.reads = 0
        self._tier_ahead = ""
        self._leads_since = 0  # the first epoch from which on the stored leader has led
        self._led_by: dict[int, tuple[int, int]] = {}  # epoch: broker, incarnation
        self._forgiven: set[int] = set()  # brokers whose next leadership may lose records

    def forgive(self, broker_id: int) -> None:
        """The broker is to lead without being in sync, or as the last member with a lost tail."""
        self._forgiven.add(broker_id)

    def on_stored(self, before: Partition, after: Partition) -> None:
        """A partition's item was written."""
        if after.leader >= 0 and after.leader not in before.isr:
            self._require(self._is_unclean_allowed, "a leader was not in the ISR before")
            self.forgive(after.leader)
        is_going_on = after.leader == before.leader and not set(before.replicas) <= set(
            after.replicas
        )
        if after.leader_epoch != before.leader_epoch and not is_going_on:
            self._leads_since = after.leader_epoch
        self._require(bool(after.isr), "an ISR is empty")
        self._require(set(after.isr) <= set(after.replicas), "an ISR names no replica")
        self._require(after.leader < 0 or after.leader in after.isr, "a leader is not in the ISR")

    def on_lead(self, broker_id: int, incarnation: int, epoch: int, log: SimLog) -> None:
        """A broker begins to lead, maybe so late that it has been deposed since.

        One that slept for longer than its lease with the news of its election before it
        begins when it wakes. Its log may be short; nobody will ever ask it.
        """
        leader = self._led_by.setdefault(epoch, (broker_id, incarnation))
        self._require(
            leader == (broker_id, incarnation),
            f"epoch {epoch} is led by {leader} and by {(broker_id, incarnation)}",
        )
        if not self._leads(broker_id, epoch):
            self._tier_ahead = ""
            return
        if broker_id in self._forgiven:
            self._forgiven.discard(broker_id)
            self._lose(log)
        else:
            self._require(
                not self._tier_ahead, f"a clean leader lacks the tier: {self._tier_ahead}"
            )
        self._tier_ahead = ""
        start, end = log.local_log_start_offset, len(self.committed)
        self._require(
            log.entries[: max(0, end - start)] == self.committed[start:],
            f"broker {broker_id} leads epoch {epoch} without what was committed: its log ends at"
            f" {log.log_end_offset}, the history at {end}",
        )

    def _lose(self, log: SimLog) -> None:
        start = log.local_log_start_offset
        for offset in range(start, len(self.committed)):
            if offset >= log.log_end_offset or log.entry(offset) != self.committed[offset]:
                self.is_lossy = True
                del self.committed[offset:]
                break
        # It may have led before, and go on from what was committed then.
        known = len(self.committed) - start
        self.committed += log.entries[known : max(known, log.high_watermark - start)]
        self.acked_all = {
            payload: offset
            for payload, offset in self.acked_all.items()
            if offset < len(self.committed)
        }

    def on_tier_ahead(self, broker_id: int, log: SimLog, start: TruncateFully) -> None:
        """A broker that is to lead lacks what the tier has; ``on_lead`` follows."""
        self._tier_ahead = f"{broker_id} ends at {log.log_end_offset}, the tier at {start.offset}"

    def on_high_watermark(self, log: SimLog, before: int, *, is_leader: bool) -> None:
        """A replica's high watermark has moved up from ``before``."""
        start = log.local_log_start_offset
        for offset in range(max(before, start), log.high_watermark):
            entry = log.entries[offset - start]
            if offset < len(self.committed):
                self._require(
                    entry == self.committed[offset] or (self.is_lossy and not is_leader),
                    f"offset {offset} was {self.committed[offset]} and is {entry}",
                )
            elif is_leader:
                self.committed.append(entry)
            else:
                self._require(self.is_lossy, f"a follower commits offset {offset} on its own")

    def on_high_watermark_regressed(self, what: str) -> None:
        """A leader's high watermark has gone back."""
        raise Violation(f"a high watermark went back: {what}")

    def on_ack(
        self, broker_id: int, epoch: int, payload: Payload, offset: int, *, is_all: bool
    ) -> None:
        """A broker acknowledges a record."""
        self._require_leads(broker_id, epoch, f"acknowledges {payload} at {offset}")
        if not is_all:
            self.acked_one += 1
            return
        self._require(
            offset < len(self.committed) and self.committed[offset][1] == payload,
            f"{payload} is acknowledged at {offset} and not committed there",
        )
        self.acked_all[payload] = offset

    def on_read(self, broker_id: int, epoch: int | None, offset: int, entries: list[Entry]) -> None:
        """A broker serves a consumer; ``epoch`` is the one it leads in, if it does."""
        if epoch is not None:
            self._require_leads(broker_id, epoch, f"serves a read at {offset}")
        self.reads += len(entries)
        self._require(
            self.is_lossy or self.committed[offset : offset + len(entries)] == entries,
            f"broker {broker_id} serves {entries} at {offset}, committed is"
            f" {self.committed[offset : offset + len(entries)]}",
        )

    def on_settled(self, broker_id: int, high_watermark: int) -> None:
        """A leader says that its high watermark is as high as any before it."""
        self._require(
            high_watermark >= len(self.committed),
            f"broker {broker_id} takes {high_watermark} for settled, {len(self.committed)} was",
        )

    def on_records_unasked(self, wanted: int, base_offset: int) -> None:
        """A follower's only request is answered with records that it has not asked for."""
        raise Violation(f"a follower at {wanted} is sent records from {base_offset}")

    def on_forgotten_told(self) -> None:
        """A follower's only request is answered with a partition that it has let go of."""
        raise Violation("a follower is told of a partition that it has forgotten")

    def on_out_of_order(self, payload: Payload) -> None:
        """An idempotent producer was refused for a gap although it waits for every ack."""
        self._require(self.is_lossy, f"the records before {payload} are gone")

    def on_consumer_cut_off(self, broker_id: int, offset: int, log_end_offset: int) -> None:
        """A consumer's position is past the end of a leader's log."""
        self._require(
            self.is_lossy, f"read up to {offset}, the log of {broker_id} ends at {log_end_offset}"
        )

    def finish(self, logs: dict[int, SimLog]) -> None:
        """Everything is healed and quiet: hold all replicas and acks against the history."""
        end = len(self.committed)
        for broker_id, log in logs.items():
            start = log.local_log_start_offset
            self._require(
                log.entries[: max(0, end - start)] == self.committed[start:]
                and log.log_end_offset >= end,
                f"the log of {broker_id} differs from the history",
            )
        for payload, offset in self.acked_all.items():
            self._require(
                offset < end and self.committed[offset][1] == payload,
                f"{payload}, acknowledged at {offset}, is lost",
            )
        last: dict[int, int] = {}
        for _, (producer, sequence) in self.committed:
            if producer < NOT_IDEMPOTENT and not self.is_lossy:
                self._require(
                    sequence == last.get(producer, -1) + 1,
                    f"producer {producer} has {sequence} after {last.get(producer)}",
                )
                last[producer] = sequence

    def _leads(self, broker_id: int, epoch: int) -> bool:
        stored = self._stored()
        return stored.leader == broker_id and self._leads_since <= epoch <= stored.leader_epoch

    def _require_leads(self, broker_id: int, epoch: int, what: str) -> None:
        stored = self._stored()
        self._require(
            self._leads(broker_id, epoch),
            f"broker {broker_id} {what} in epoch {epoch}, but {stored.leader} leads"
            f" in {stored.leader_epoch}",
        )

    def _require(self, holds: bool, problem: str) -> None:
        if not holds:
            raise Violation(problem)
