"""The heir of a chain: where it finds the end, and when a seal counts."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from tidelog_core.diskless.chain.chain_writer import PutOutcome
from tidelog_core.diskless.chain.rules import ChainRules
from tidelog_core.diskless.takeover.chain_sealer import (
    ROUNDS_MAX,
    ChainSealer,
    GivenUp,
    ListChain,
    PutSeal,
    ReadHeaders,
    Sealed,
    SealerDecision,
    StillOpen,
)
from tidelog_core.diskless.wal.build import build_seal
from tidelog_core.diskless.wal.header import WalHeader

from tests.support.data_objects import build_data_object
from tests.support.wal_objects import CHAIN, HEIR, name


def data(sequence: int, committed_end: int) -> WalHeader:
    return build_data_object(name(sequence, committed_end=committed_end), []).header


def seal(sequence: int) -> WalHeader:
    return build_seal(name(sequence, committed_end=sequence), HEIR).header


@dataclass
class Bucket:
    """The headers of one chain."""

    headers: dict[int, WalHeader] = field(default_factory=dict)
    lists: int = 0

    def put(self, *headers: WalHeader) -> Bucket:
        self.headers |= {header.sequence: header for header in headers}
        return self

    def drive(self, sealer: ChainSealer, decisions: list[SealerDecision]) -> SealerDecision:
        """Carry out everything until the sealer has ended."""
        while decisions:
            decision = decisions.pop(0)
            match decision:
                case ListChain(start):
                    self.lists += 1
                    decisions += sealer.on_listed(sorted(n for n in self.headers if n >= start))
                case ReadHeaders(sequences):
                    for sequence in sequences:
                        decisions += sealer.on_header(sequence, self.headers.get(sequence))
                case PutSeal(sequence):
                    outcome = PutOutcome.TAKEN if sequence in self.headers else PutOutcome.STORED
                    if outcome is PutOutcome.STORED:
                        self.headers[sequence] = seal(sequence)
                    decisions += sealer.on_seal_put(sequence, outcome, 0.0)
                case _:
                    return decision
        raise AssertionError("it waits for nothing")


def sealer(known_end: int = 0, **kwargs: object) -> ChainSealer:
    return ChainSealer(CHAIN, known_end=known_end, now_ms=0.0, **kwargs)  # type: ignore[arg-type]


@pytest.mark.parametrize("known_end", [0, 1, 3])
def test_a_chain_is_sealed_behind_its_last_object(known_end: int) -> None:
    bucket = Bucket().put(data(0, 0), data(1, 0), data(2, 1))
    heir = sealer(known_end)
    assert bucket.drive(heir, heir.start()) == Sealed(3)
    assert bucket.headers[3].kind.name == "SEAL"
    assert heir.end == 3
    assert bucket.lists == 2  # the second one confirms the seal


def test_an_empty_chain_is_sealed_at_its_beginning() -> None:
    heir = sealer()
    assert Bucket().drive(heir, heir.start()) == Sealed(0)


def test_the_seal_goes_into_the_first_gap() -> None:
    bucket = Bucket().put(data(0, 0), data(1, 0), data(3, 1), data(4, 2))
    heir = sealer()
    assert bucket.drive(heir, heir.start()) == Sealed(2)


def test_what_was_collected_is_no_gap() -> None:
    bucket = Bucket().put(data(7, 5), data(8, 7))
    heir = sealer()
    assert bucket.drive(heir, heir.start()) == Sealed(9)


def test_a_second_heir_finds_the_first_ones_seal_below_garbage() -> None:
    """Object 3 was in flight when the seal got place 2. Nothing is missing in the listing."""
    bucket = Bucket().put(data(0, 0), data(1, 0), seal(2), data(3, 1))
    heir = sealer()
    assert bucket.drive(heir, heir.start()) == Sealed(2)
    assert sorted(bucket.headers) == [0, 1, 2, 3]
    assert bucket.lists == 2


def test_a_collected_chain_still_ends_at_its_seal() -> None:
    bucket = Bucket().put(seal(6), data(7, 4))
    heir = sealer()
    assert bucket.drive(heir, heir.start()) == Sealed(6)


def test_of_two_heirs_at_once_both_find_the_same_end() -> None:
    bucket = Bucket().put(data(0, 0), data(1, 0))
    one, other = sealer(), sealer()
    first = one.start()
    bucket.headers.pop(1)
    late = [*other.start()]
    bucket.put(data(1, 0))
    assert bucket.drive(one, first) == Sealed(2)
    assert bucket.drive(other, late) == Sealed(2)


def test_an_owner_that_goes_on_is_followed() -> None:
    bucket = Bucket().put(data(0, 0))
    heir = sealer()
    decisions = heir.start()
    decisions = heir.on_listed([0])
    assert decisions == [ReadHeaders((0,))]
    (put,) = heir.on_header(0, bucket.headers[0])
    assert put == PutSeal(1, bucket.headers[0].crc)
    bucket.put(data(1, 0), data(2, 1))
    (read,) = heir.on_seal_put(1, PutOutcome.TAKEN, 0.0)
    assert read == ReadHeaders((1,))
    assert heir.on_header(1, bucket.headers[1]) == [PutSeal(2, bucket.headers[1].crc)]
    assert bucket.drive(heir, [PutSeal(2, 0)]) == Sealed(3)


def test_a_late_seal_in_a_collected_place_ends_nothing() -> None:
    """The heir had listed object 0 alone. Until its seal came, the owner wrote up to 9, and collected."""
    heir = sealer()
    heir.start()
    heir.on_listed([0])
    (put,) = heir.on_header(0, data(0, 0))
    assert isinstance(put, PutSeal)
    bucket = Bucket().put(data(8, 6), data(9, 8))
    assert bucket.drive(heir, [put]) == Sealed(10)
    assert sorted(bucket.headers) == [1, 8, 9, 10]
    other = sealer()
    assert bucket.drive(other, other.start()) == Sealed(10)


def test_without_looking_again_the_late_seal_would_count() -> None:
    """The design's word for word; the owner of that chain would go on for ever."""

    class Unconfirmed(ChainRules):
        def confirms_stored_seals(self) -> bool:
            return False

    heir = sealer(rules=Unconfirmed())
    heir.start()
    heir.on_listed([0])
    (put,) = heir.on_header(0, data(0, 0))
    assert Bucket().put(data(8, 6), data(9, 8)).drive(heir, [put]) == Sealed(1)


def test_a_seal_that_is_younger_than_the_listing_ends_nothing_yet() -> None:
    """Object 1 was listed. Until its header was read, it was collected, and a late seal got its place."""
    heir = sealer()
    heir.start()
    heir.on_listed([0, 1])
    assert heir.on_header(1, seal(1)) == [ListChain(1)]
    bucket = Bucket().put(seal(1), data(8, 6), data(9, 8))
    assert bucket.drive(heir, [ListChain(1)]) == Sealed(10)


def test_an_object_that_is_gone_when_it_is_read_was_collected() -> None:
    heir = sealer()
    heir.start()
    heir.on_listed([0, 1])
    assert heir.on_header(1, None) == [ListChain(0)]


def test_torn_listings_and_unknown_outcomes_are_tried_again_later() -> None:
    heir = sealer()
    heir.start()
    assert heir.on_failed(0.0) == []
    assert heir.delay_ms(0.0) == 50
    assert heir.tick(49.0) == []
    assert heir.tick(50.0) == [ListChain(0)]
    assert heir.on_listed([]) == [PutSeal(0, 0)]
    assert heir.on_seal_put(0, PutOutcome.UNKNOWN, 60.0) == [ReadHeaders((0,))]
    assert heir.on_header(0, None) == [PutSeal(0, 0)]
    assert heir.on_seal_put(0, PutOutcome.THROTTLED, 70.0) == []
    assert heir.tick(1_000.0) == [ListChain(0)]


def test_a_race_against_a_living_owner_ends() -> None:
    heir = sealer()
    heir.start()
    decisions = heir.on_listed([])
    sequence = 0
    while isinstance(decisions[0], PutSeal):
        assert heir.on_seal_put(sequence, PutOutcome.TAKEN, 0.0) == [ReadHeaders((sequence,))]
        decisions = heir.on_header(sequence, data(sequence, sequence))
        sequence += 1
        assert sequence <= ROUNDS_MAX
    assert isinstance(decisions[0], GivenUp)


def test_who_may_not_seal_only_looks() -> None:
    bucket = Bucket().put(data(0, 0))
    looker = sealer(may_seal=False)
    assert bucket.drive(looker, looker.start()) == StillOpen(1)
    bucket.put(seal(1))
    looker = sealer(may_seal=False)
    assert bucket.drive(looker, looker.start()) == Sealed(1)
    assert sorted(bucket.headers) == [0, 1]
