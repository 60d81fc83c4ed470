"""The zone of a client, by what it sends and where it connects from."""

from __future__ import annotations

import pytest
from tidelog_core.config import NodeConfig, parse_config
from tidelog_core.errors import InvalidConfig
from tidelog_core.setting_values.client_zones import (
    HINTED_CHARS_MAX,
    ZONES_MAX,
    ClientZones,
    hinted_zone,
)

RACKS = frozenset({"az1", "use1-az1", "use1-az2", "rack b"})
ADDRESS = "10.0.17.4"
LISTENERS = "client.az.listener.map"
SUBNETS = "client.az.cidr.map"


@pytest.mark.parametrize(
    ("client_id", "zone"),
    [
        ("diskless_az=az1", "az1"),
        ("app,diskless_az=az1", "az1"),
        ("app, diskless_az=az1,x=y", "az1"),
        ("app|diskless_az=az1|x", "az1"),
        ("my-app,ws_az=use1-az1", "use1-az1"),
        ("ws_az=use1-az2,ws_pas=equal_spread,ws_pt=proxy", "use1-az2"),
        ("warpstream_az=use1-az2", "use1-az2"),
        ("automq_type=producer&automq_role=p-1&automq_client_id=p-1&automq_az=az1", "az1"),
        ("automq_az=az1&my-consumer", "az1"),
        ("automq_az=rack%20b", "rack b"),
        ("app,diskless_az=use1-az1-StreamThread-1-producer", "use1-az1"),
        ("automq_az=nowhere&x,ws_az=az1", "az1"),
        ("diskless_az=nowhere", None),
        ("diskless_az=", None),
        ("diskless_az=,x", None),
        ("xdiskless_az=az1", None),
        ("app-ws_az=az1", None),
        ("az=az1", None),
        ("", None),
    ],
)
def test_client_ids_name_the_zone_as_three_other_logs_have_it(
    client_id: str, zone: str | None
) -> None:
    assert hinted_zone(client_id, RACKS) == zone


@pytest.mark.parametrize("hint", ["-" * 32_000, "a-" * 16_000, "diskless_az=-," * 2_000])
def test_a_client_id_costs_little_however_long_it_is(hint: str) -> None:
    """A suffix is cut off once for each hyphen: the racks are looked at that often."""

    class Racks(frozenset[str]):
        looks = 0

        def __contains__(self, zone: object) -> bool:
            Racks.looks += 1
            return super().__contains__(zone)

    assert hinted_zone(f"diskless_az={hint}", Racks({"az1"})) is None
    assert Racks.looks <= HINTED_CHARS_MAX


def test_a_hint_is_taken_as_it_is_where_no_broker_has_a_rack() -> None:
    assert hinted_zone("app,diskless_az=anything-else", ()) == "anything-else"


def test_the_first_source_that_knows_decides() -> None:
    zones = ClientZones.of("AZ1=use1-az1", "10.0.16.0/20=use1-az2")
    hint = "app,ws_az=az1"

    def zone_of(client_id: str | None, rack: str | None, address: str, listener: str) -> str | None:
        return zones.zone_of(client_id, rack, address, listener=listener, racks=RACKS)

    assert zone_of(hint, "rack9", ADDRESS, "AZ1") == "rack9"
    assert zone_of(hint, "", ADDRESS, "AZ1") == "az1"
    assert zone_of("app", None, ADDRESS, "az1") == "use1-az1"
    assert zone_of(None, None, ADDRESS, "PLAINTEXT") == "use1-az2"
    assert zone_of(None, None, "10.1.0.1", "PLAINTEXT") is None
    assert ClientZones().zone_of("app", None, ADDRESS) is None


@pytest.mark.parametrize(
    ("address", "zone"),
    [
        ("10.0.1.2", "all"),
        ("10.0.17.4", "one"),
        ("10.0.17.5", "host"),
        ("::ffff:10.0.17.4", "one"),
        ("2001:db8:0:1::9", "six"),
        ("2001:db8:1::9", "wide six"),
        ("fe80::1%eth0", None),
        ("192.168.0.1", None),
        ("::1", None),
        ("", None),
        ("not an address", None),
    ],
)
def test_the_smallest_subnet_with_the_address_counts(address: str, zone: str | None) -> None:
    zones = ClientZones.of(
        "",
        "10.0.0.0/8=all, 10.0.16.0/20=one, 10.0.17.5/32=host,"
        "2001:db8::/32=wide six,2001:db8:0:1::/64=six",
    )
    assert zones.zone_of(None, None, address) == zone


def test_every_address_is_in_the_subnet_of_all() -> None:
    zones = ClientZones.of("", "0.0.0.0/0=four,::/0=six")
    assert zones.zone_of(None, None, "255.255.255.255") == "four"
    assert zones.zone_of(None, None, "::") == "six"


@pytest.mark.parametrize(
    ("setting", "text", "problem"),
    [
        (LISTENERS, "AZ1", "'AZ1' is not of the form LISTENER=zone"),
        (LISTENERS, "=a", "'=a' is not of the form LISTENER=zone"),
        (LISTENERS, "AZ1=", "'AZ1=' is not of the form LISTENER=zone"),
        (LISTENERS, "AZ1=a,az1=b", "az1 has two zones"),
        (SUBNETS, "10.0.0.0/8", "'10.0.0.0/8' is not of the form subnet=zone"),
        (SUBNETS, "10.0.0.0/8=a=b", "is not of the form subnet=zone"),
        (SUBNETS, "10.0.0.0/40=a", "10.0.0.0/40 is no subnet"),
        (SUBNETS, "10.0.0/8=a", "10.0.0/8 is no subnet"),
        (SUBNETS, "2001:db8::/129=a", "2001:db8::/129 is no subnet"),
        (SUBNETS, "10.0.0.1/8=a", "10.0.0.1/8 is an address in a subnet: did you mean 10.0.0.0/8?"),
        (SUBNETS, "10.0.0.1=a", "10.0.0.1 is an address in a subnet: did you mean 10.0.0.1/32?"),
        (SUBNETS, "10.0.0.0/8=a,10.0.0.0/8=b", "10.0.0.0/8 has two zones"),
        (SUBNETS, ",".join(["::/0=a"] * (ZONES_MAX + 1)), "1001 entries, at most 1000 are allowed"),
    ],
    ids=range(13),
)
def test_a_wrong_map_is_refused_at_the_start_and_named(
    setting: str, text: str, problem: str
) -> None:
    with pytest.raises(InvalidConfig) as refused:
        parse_config(NodeConfig, {setting: text})
    assert setting in str(refused.value)
    assert problem in str(refused.value)


def test_empty_maps_know_nobody() -> None:
    config = parse_config(NodeConfig, {LISTENERS: "", SUBNETS: " , "})
    zones = ClientZones.of(config.client_az_listener_map, config.client_az_cidr_map)
    assert zones == ClientZones()
