from __future__ import annotations

from uuid import UUID

from tidelog_core.metadata.records import broker_lease_key
from tidelog_core.metadata.store import UNREADABLE_VERSION, Item, ItemKey
from tidelog_core.replication.leases.observed_lease import read_leases
from tidelog_core.replication.leases.own_lease import RELEASED, OwnLease
from tidelog_core.replication.leases.peer_leases import PeerLeases

from tests.support.replication_cluster import TIMES, make_lease, make_peers


def test_a_lease_that_cannot_be_read_tells_by_its_version_whether_it_is_renewed() -> None:
    peers = PeerLeases(TIMES)

    def observe(item: Item, at_ms: float) -> None:
        peers.observe(read_leases([item]), started_ms=at_ms, now_ms=at_ms)

    def damaged(version: int) -> Item:
        return Item(broker_lease_key(2), version, {}, "not JSON")

    observe(damaged(7), 0)
    assert peers.is_live(2)
    observe(damaged(8), 8_000)
    observe(damaged(8), 16_000)
    assert peers.is_live(2)
    assert peers.check(2).expected_version == 8
    observe(damaged(8), 17_000)
    assert peers.is_dead(2)
    # Its next renewal puts it right.
    lease = make_lease(2, counter=5, version=9)
    observe(Item(lease.item_id, 9, lease.to_body()), 18_000)
    assert peers.is_live(2)


def test_a_lease_that_has_lost_its_version_is_never_taken_for_dead() -> None:
    peers = PeerLeases(TIMES)
    item = Item(broker_lease_key(2), UNREADABLE_VERSION, {}, "no version")
    for at_ms in range(0, 60_000, 3_000):
        peers.observe(read_leases([item]), started_ms=at_ms, now_ms=at_ms)
    assert not peers.is_dead(2)


def test_a_foreign_item_among_the_leases_is_no_lease() -> None:
    assert read_leases([Item(ItemKey("broker-lease", "two"), 1, {})]) == []


def test_a_peer_is_dead_when_a_reading_begun_a_lease_later_shows_the_same() -> None:
    peers = PeerLeases(TIMES)
    peers.observe([make_lease(2)], started_ms=0, now_ms=100)
    peers.observe([make_lease(2)], started_ms=9_099, now_ms=9_200)
    assert peers.is_live(2)
    peers.observe([make_lease(2)], started_ms=9_100, now_ms=9_200)
    assert peers.is_dead(2)
    peers.observe([make_lease(2, counter=2)], started_ms=9_300, now_ms=9_310)
    assert peers.is_live(2)


def test_an_observer_that_could_not_read_takes_nobody_for_dead() -> None:
    peers = PeerLeases(TIMES)
    peers.observe([make_lease(2)], started_ms=0, now_ms=0)
    peers.observe([make_lease(2)], started_ms=100, now_ms=60_000)
    assert peers.is_live(2)


def test_an_older_reading_that_comes_late_changes_nothing() -> None:
    peers = PeerLeases(TIMES)
    peers.observe([make_lease(2, counter=5)], started_ms=0, now_ms=0)
    peers.observe([make_lease(2, counter=4)], started_ms=20_000, now_ms=20_000)
    assert peers.is_live(2)
    assert peers.check(2).expected_version == 5


def test_a_peer_that_left_in_order_is_dead_at_once() -> None:
    peers = PeerLeases(TIMES)
    peers.observe([make_lease(2)], started_ms=0, now_ms=0)
    left = OwnLease(2, UUID(int=2), times=TIMES, found=make_lease(2)).release()
    assert left.counter == RELEASED
    peers.observe([make_lease(2, counter=RELEASED, version=2)], started_ms=1, now_ms=1)
    assert peers.is_dead(2)


def test_nothing_is_known_before_the_first_reading() -> None:
    peers = PeerLeases(TIMES)
    assert not peers.is_dead(2)
    assert not peers.is_live(2)
    peers.observe([], started_ms=0, now_ms=0)
    assert peers.is_dead(2)
    assert peers.check(2).expected_version == 0


def test_a_lost_check_tells_that_a_broker_lives_until_a_reading_says_otherwise() -> None:
    peers = make_peers(dead=(1, 2), live=(3,))
    peers.note_moved({peers.check(1)})
    assert not peers.has_died(1)
    assert peers.has_died(2)
    later_ms = TIMES.lease_ms + 500
    peers.observe([make_lease(1)], started_ms=later_ms, now_ms=later_ms)
    assert peers.has_died(1)
    assert peers.unattended_ms(1, later_ms) == 0


def test_a_registration_tells_that_a_broker_lives_until_a_later_reading_says_otherwise() -> None:
    peers = make_peers(dead=(1,), live=(3,))
    now_ms = TIMES.lease_ms + 500.0
    peers.note_registered([1, 2], now_ms)
    for broker_id in (1, 2):
        assert peers.is_live(broker_id)
        assert peers.unattended_ms(broker_id, now_ms) is None
        # That it has outlived anybody is not known.
        assert not peers.is_fresh(broker_id, now_ms)
    # A reading that was under way shows nothing of it.
    peers.observe([make_lease(1), make_lease(3, 2)], started_ms=now_ms - 1, now_ms=now_ms + 5)
    assert peers.is_live(1)
    assert peers.is_live(2)
    peers.observe([make_lease(1, 2), make_lease(3, 2)], started_ms=now_ms, now_ms=now_ms + 9)
    assert peers.is_live(1)
    assert peers.is_dead(2)
