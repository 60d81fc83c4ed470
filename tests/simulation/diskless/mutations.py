"""Deliberate mistakes, each the removal of one rule. The simulation must find every one.

The first seven are those that the design names. The others are what it would do word for word:
the simulation found that these lose acknowledged records.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from tidelog_core.diskless.chain.chain_writer import BuildObject, ChainWriter
from tidelog_core.diskless.chain.noted_ranges import NotedRange
from tidelog_core.diskless.chain.rules import ChainRules
from tidelog_core.diskless.collection.collection import UnneededEnds
from tidelog_core.diskless.wal.header import WalHeader
from tidelog_core.log.producers.producer_snapshot import encode_snapshot
from tidelog_core.log.producers.producer_state import ProducerState
from tidelog_core.model import INT64_MAX

from tests.simulation.diskless.leader_log import EXPIRATION_MS, LeaderLog
from tests.simulation.diskless.node import Incarnation
from tests.simulation.diskless.plan import Plan, draw_moving_plan, draw_plan, draw_suspicious_plan
from tests.simulation.diskless.shell import Mutable
from tests.support.chain_model.checkpoint import CheckpointedPartition
from tests.support.chain_model.stored_checkpoints import StoredCheckpoints


class CreatesWithoutCondition(Mutable):
    """A PUT replaces whatever has the key."""

    creates_conditionally = False


class CommitsBeforeThePredecessor(ChainRules):
    """An object counts as soon as it is stored."""

    def committed_end(self, committed_end: int, stored: Collection[int]) -> int:
        return max([committed_end, *(sequence + 1 for sequence in stored)])


class DeletesSeals(ChainRules):
    """A collected chain's seal goes with the rest."""

    def keeps_seal(self) -> bool:
        return False


class WritesEpochsBeforeTheSeal(ChainRules):
    """An heir writes the next epochs from what it reads, and seals the chain later."""

    def may_take_over(self, *, is_sealed: bool) -> bool:
        return True


class IgnoresTheCommittedEnd(ChainRules):
    """An heir looks for the first missing object from where it began to list."""

    def known_end(self, known_end: int, headers: Iterable[WalHeader]) -> int:
        return known_end


class RefersBeforeTheGatewaysPut(ChainRules):
    """A leader counts a reference when it hears of it."""

    def may_refer(self, sequence: int, gateway_committed_end: int) -> bool:
        return True


class HedgesWithOtherBytes(Mutable):
    """A repeated PUT takes along what has been appended since."""

    def hedge(self, node: Incarnation, sequence: int) -> bytes:
        built, content = node.built[sequence], node.contents[sequence]
        ranges: list[NotedRange] = []
        for part in content.ranges:
            log = node.logs.get(part.partition)
            end = part.end_offset if log is None else log.own_end(part.end_offset)
            ranges.append(part._replace(end_offset=end))
        if not ranges or tuple(ranges) == content.ranges:
            return built.data
        header = built.header
        order = BuildObject(sequence, header.committed_end, header.previous_crc, content)
        node.built[sequence] = node.build(order, content._replace(ranges=tuple(ranges)))
        return node.built[sequence].data


class DoesNotConfirmSeals(ChainRules):
    """A seal that is stored ends the chain, wherever its PUT was late."""

    def confirms_stored_seals(self) -> bool:
        return False

    def confirms_found_seals(self) -> bool:
        return False


class BelievesAnOlderListing(ChainRules):
    """A seal that is found counts by a listing that may be older than it."""

    def confirms_found_seals(self) -> bool:
        return False


class CollectsEverythingCommitted(ChainRules):
    """An owner collects all but the last object that it has seen committed."""

    def collection_end(self, last_committed: WalHeader) -> int:
        return last_committed.sequence


class TakesAnyListedObjectForData(DoesNotConfirmSeals):
    """An heir seals at the first sequence that is not listed, and does not look for a seal below.

    Owners collect nothing here, so that only this mistake can be found.
    """

    def is_end(self, header: WalHeader) -> bool:
        return False

    def collection_end(self, last_committed: WalHeader) -> int:
        return 0


class ReadsTheTierFirst(Mutable):
    """An heir reads up to where the tier goes, and lists what the chain has left later."""

    reads_tier_first = True


class ServesOpenTransactions(Mutable):
    """A leader serves read_committed up to the high watermark."""

    def stable_end(self, log: LeaderLog) -> int:
        return log.high_watermark


class ForgetsProducers(Mutable):
    """An heir knows where a partition ends, and nobody who has written it."""

    def replayed(self, state: ProducerState) -> ProducerState:
        return ProducerState(end_offset=state.end_offset, expiration_ms=EXPIRATION_MS)


class ForgetsProducerEpochs(Mutable):
    """An heir knows the producers' sequences, and takes them for those of their first epoch."""

    def replayed(self, state: ProducerState) -> ProducerState:
        for _, entry in state.items():  # noqa: PERF102 -- it is no dict
            entry.epoch = 0
        return state


class GivesUpFailedBuilds(Mutable):
    """An object that cannot be built is forgotten, and its sequence with it."""

    builds_again = False


class HandsOverWhatIsNotCommitted(Mutable):
    """A leader that leaves names the end of its log, whether it is stored or not."""

    hands_over_committed = False


class TakesRecordsWhileItHandsOver(Mutable):
    """A leader that leaves goes on until it sees that the item names another one."""

    stops_before_handover = False


class CollectsBelowLogStarts(Mutable):
    """Nobody waits for a checkpoint with what is deleted below a log start."""

    def unneeded(self, node: Incarnation, checkpoints: StoredCheckpoints) -> UnneededEnds:
        log_starts = {name: log.log_start for name, log in node.logs.items()}
        ends = node.tier_ends()
        return UnneededEnds({name: max(end, log_starts.get(name, 0)) for name, end in ends.items()})


class CountsCheckpointsTooEarly(Mutable):
    """A checkpoint counts when its PUT is sent."""

    waits_for_checkpoints = False


class ReadsNoCheckpoints(Mutable):
    """An heir goes on from the end of the tier, whatever was deleted above."""

    reads_checkpoints = False


class KeepsTheLastCheckpointOnly(Mutable):
    """A checkpoint goes as soon as there is a later one, whoever has left the chain since."""

    def unused_checkpoints(
        self, node: Incarnation, checkpoints: StoredCheckpoints, *, is_sealed: bool
    ) -> list[int]:
        everything = dict.fromkeys(node.setup.tiers, INT64_MAX)
        return checkpoints.collectable(everything, is_sealed=is_sealed)


class CheckpointsWhatIsNotCommitted(Mutable):
    """A checkpoint has a partition as its log is, up to what was built last."""

    def checkpointed(self, log: LeaderLog, tier_end: int) -> CheckpointedPartition:
        committed = log.checkpointed(tier_end)
        return committed._replace(
            end_offset=log.state.end_offset, producers=encode_snapshot(log.state)
        )


class CheckpointsTooFarAhead(Mutable):
    """A checkpoint claims the objects in flight, and has partitions as they are committed."""

    def checkpointed_end(self, writer: ChainWriter) -> int:
        return writer.next_sequence


@dataclass(frozen=True)
class Mutation:
    """A mistake, and the plans that look for it, later ones where chance is slow to meet it."""

    rules: ChainRules = field(default_factory=ChainRules)
    shell: Mutable = field(default_factory=Mutable)
    draw: Callable[[int], Plan] = draw_plan
    first_seed: int = 0


DESIGN_MUTATIONS: Mapping[str, Mutation] = {
    "creates without condition": Mutation(shell=CreatesWithoutCondition()),
    "commits before the predecessor": Mutation(CommitsBeforeThePredecessor()),
    "deletes seals": Mutation(DeletesSeals()),
    "writes epochs before the seal": Mutation(WritesEpochsBeforeTheSeal()),
    "ignores the committed end": Mutation(IgnoresTheCommittedEnd(), first_seed=8),
    "refers before the gateway's PUT": Mutation(RefersBeforeTheGatewaysPut()),
    "hedges with other bytes": Mutation(shell=HedgesWithOtherBytes()),
}
# Of what is no rule of chains: they show that the checker looks at transactions and producers.
CHECKER_MUTATIONS: Mapping[str, Mutation] = {
    "serves open transactions": Mutation(shell=ServesOpenTransactions()),
    "forgets producers": Mutation(shell=ForgetsProducers()),
}
FOUND_MUTATIONS: Mapping[str, Mutation] = {
    "does not confirm seals": Mutation(DoesNotConfirmSeals(), first_seed=19),
    "believes an older listing": Mutation(BelievesAnOlderListing(), first_seed=216),
    "collects everything committed": Mutation(
        CollectsEverythingCommitted(), draw=draw_suspicious_plan, first_seed=474
    ),
    "reads the tier first": Mutation(shell=ReadsTheTierFirst(), first_seed=728),
    "takes any listed object for data": Mutation(
        TakesAnyListedObjectForData(), draw=draw_suspicious_plan
    ),
}
# Of log starts, checkpoints, producers' epochs and files that cannot be read.
LATER_MUTATIONS: Mapping[str, Mutation] = {
    "forgets producers' epochs": Mutation(shell=ForgetsProducerEpochs(), first_seed=9),
    "gives up failed builds": Mutation(shell=GivesUpFailedBuilds(), first_seed=29),
    "hands over what is not committed": Mutation(
        shell=HandsOverWhatIsNotCommitted(), draw=draw_moving_plan
    ),
    "takes records while it hands over": Mutation(
        shell=TakesRecordsWhileItHandsOver(), draw=draw_moving_plan
    ),
    "collects below log starts": Mutation(shell=CollectsBelowLogStarts()),
    "counts checkpoints too early": Mutation(shell=CountsCheckpointsTooEarly(), first_seed=40),
    "reads no checkpoints": Mutation(shell=ReadsNoCheckpoints(), first_seed=9),
    "keeps the last checkpoint only": Mutation(
        shell=KeepsTheLastCheckpointOnly(), draw=draw_moving_plan
    ),
    "checkpoints what is not committed": Mutation(shell=CheckpointsWhatIsNotCommitted()),
    "checkpoints too far ahead": Mutation(shell=CheckpointsTooFarAhead()),
}
