"""Listeners as Kafka's settings describe them."""

from __future__ import annotations

import re

import pytest
from tidelog_core.config import ListenerConfig, NodeConfig, parse_config
from tidelog_core.errors import InvalidConfig
from tidelog_node.security.listeners import (
    AddressArguments,
    Listener,
    Listeners,
    SecurityProtocol,
    is_loopback,
    parse_listeners,
)
from tidelog_node.settings import parse_settings


def listeners_of(*given: str) -> Listeners:
    arguments = [part for pair in given for part in ("--set", pair)]
    return parse_settings(arguments, {}).listeners


def problems_of(*given: str, arguments: AddressArguments | None = None) -> list[str]:
    overrides = dict(pair.split("=", 1) for pair in given)
    with pytest.raises(InvalidConfig) as raised:
        parse_listeners(parse_config(NodeConfig, overrides), {}, arguments or AddressArguments())
    return list(raised.value.problems)


def test_each_listener_has_its_own_addresses() -> None:
    listeners = listeners_of(
        "listeners=INSIDE://10.0.0.1:9092,outside://[::]:9093,NODE://10.0.0.1:9094",
        "advertised.listeners=OUTSIDE://kafka.example:443",
        "listener.security.protocol.map=INSIDE:PLAINTEXT,OUTSIDE:plaintext",
    )
    assert listeners.clients == (
        Listener(name="INSIDE", host="10.0.0.1", port=9092, advertised_host="10.0.0.1"),
        Listener(
            name="OUTSIDE",
            host="::",
            port=9093,
            advertised_host="kafka.example",
            advertised_port=443,
        ),
    )
    assert listeners.nodes == Listener(
        name="NODE", host="10.0.0.1", port=9094, advertised_host="10.0.0.1"
    )


def test_the_listener_for_nodes_is_beside_the_first_one_where_none_is_given() -> None:
    listeners = listeners_of(
        "listeners=PLAINTEXT://:9092",
        "advertised.listeners=PLAINTEXT://node.example:9092",
        "inter.broker.listener.name=internal",
    )
    assert listeners.nodes == Listener(
        name="INTERNAL", host="", port=0, advertised_host="node.example"
    )


def test_a_listener_has_its_own_settings_and_those_of_the_node() -> None:
    listeners = listeners_of(
        "listeners=A://127.0.0.1:1,B://127.0.0.1:2",
        "listener.security.protocol.map=A:PLAINTEXT,B:PLAINTEXT",
        "ssl.client.auth=requested",
        "listener.name.b.ssl.client.auth=required",
        "listener.name.B.ssl.truststore.location=/b.pem",
    )
    a, b = (one.config for one in listeners.clients)
    assert (a.ssl_client_auth, a.ssl_truststore_location) == ("requested", "")
    assert (b.ssl_client_auth, b.ssl_truststore_location) == ("required", "/b.pem")


def test_the_environment_sets_a_listeners_setting() -> None:
    environment = {
        "TIDELOG_CONFIG_LISTENERS": "MY_ONE://127.0.0.1:0",
        "TIDELOG_CONFIG_LISTENER_SECURITY_PROTOCOL_MAP": "MY_ONE:PLAINTEXT",
        "TIDELOG_CONFIG_LISTENER_NAME_MY_ONE_SSL_CLIENT_AUTH": "required",
    }
    settings = parse_settings([], environment)
    (listener,) = settings.listeners.clients
    assert (listener.name, listener.config.ssl_client_auth) == ("MY_ONE", "required")
    with pytest.raises(InvalidConfig, match="TIDELOG_CONFIG_LISTENER_NAME_MY_ONE_SSL_NOTHING"):
        parse_settings([], environment | {"TIDELOG_CONFIG_LISTENER_NAME_MY_ONE_SSL_NOTHING": "1"})


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("listeners=PLAINTEXT:9092", "must be NAME://host:port"),
        ("listeners=PLAINTEXT://h:99999", "from 0 to 65535"),
        ("listeners=PLAINTEXT://a:1,plaintext://b:2", "names PLAINTEXT twice"),
        ("listeners=PLAINTEXT://a:1,NODE://a:1", "port 1 twice"),
        ("listeners=OTHER://a:1", "OTHER has no protocol in listener.security.protocol.map"),
        ("listeners=PLAINTEXT://:1", "give advertised.listeners=PLAINTEXT://host:port"),
        ("listeners=NODE://a:1", "none for clients"),
        ("advertised.listeners=SSL://a:1", "names SSL, which is not in listeners"),
        ("listener.security.protocol.map=PLAINTEXT:TELNET", "PLAINTEXT, SSL, SASL_PLAINTEXT"),
        ("listener.security.protocol.map=NODE:SSL,PLAINTEXT:PLAINTEXT", "no security protocol"),
        (f"listeners={','.join(f'L{n}://a:{n}' for n in range(17))}", "17 listeners"),
    ],
)
def test_a_problem_says_what_is_allowed(given: str, problem: str) -> None:
    assert re.search(problem, "; ".join(problems_of(given)))


def test_an_advertised_port_is_one_that_clients_can_connect_to() -> None:
    (problem,) = problems_of("advertised.listeners=PLAINTEXT://a:0")
    assert problem == "advertised.listeners: the port of PLAINTEXT must be from 1 to 65535"


def test_addresses_are_given_in_one_way() -> None:
    given = "listeners=PLAINTEXT://127.0.0.1:1,NODE://127.0.0.1:2"
    arguments = AddressArguments(host="127.0.0.1", advertised_port=5, inter_broker_port=7)
    assert problems_of(given, arguments=arguments) == [
        "host, advertised_port cannot be given together with listeners",
        "inter_broker_port cannot be given together with NODE in listeners",
    ]


def test_settings_of_an_unknown_listener_are_refused() -> None:
    with pytest.raises(InvalidConfig, match=r"listener\.name\.other names a listener that is not"):
        listeners_of("listener.name.other.ssl.client.auth=none")
    with pytest.raises(InvalidConfig, match=r"setting 'listener\.name\.plaintext\.num\.part"):
        listeners_of("listener.name.plaintext.num.partitions=1")


@pytest.mark.parametrize(
    ("host", "protocol", "client_auth", "is_open"),
    [
        ("127.0.0.1", "PLAINTEXT", "none", False),
        ("::1", "SSL", "none", False),
        ("localhost", "PLAINTEXT", "none", False),
        ("10.0.0.1", "PLAINTEXT", "none", True),
        ("node.example", "SSL", "requested", True),
        ("0.0.0.0", "SSL", "required", False),
        ("::", "SASL_PLAINTEXT", "none", False),
    ],
)
def test_a_listener_is_open_if_strangers_of_other_machines_get_in(
    host: str, protocol: str, client_auth: str, is_open: bool
) -> None:
    config = ListenerConfig(ssl_client_auth=client_auth)
    listener = Listener(name="L", host=host, protocol=SecurityProtocol(protocol), config=config)
    assert listener.is_open == is_open


@pytest.mark.parametrize(
    ("host", "is_of_this_machine"),
    [
        ("localhost", True),
        ("127.0.0.1", True),
        ("127.255.0.9", True),
        ("128.0.0.1", False),
        ("0.0.0.0", False),
        ("::1", True),
        ("::2", False),
        ("", False),
        ("127.0.0", False),
        ("127.0.0.1.example.com", False),
        ("127.0.0.1\0", False),
    ],
)
def test_only_loopback_addresses_count_as_those_of_this_machine(
    host: str, is_of_this_machine: bool
) -> None:
    assert is_loopback(host) == is_of_this_machine


def test_every_protocol_of_kafka_is_known() -> None:
    assert [(one, one.has_tls, one.has_sasl) for one in SecurityProtocol] == [
        ("PLAINTEXT", False, False),
        ("SSL", True, False),
        ("SASL_PLAINTEXT", False, True),
        ("SASL_SSL", True, True),
    ]


SASL = ("listeners=S://127.0.0.1:1", "listener.security.protocol.map=S:SASL_PLAINTEXT")


def test_a_listener_has_its_own_settings_of_sasl() -> None:
    listeners = listeners_of(
        "listeners=S://127.0.0.1:1,T://127.0.0.1:2",
        "listener.security.protocol.map=S:SASL_PLAINTEXT,T:SASL_SSL",
        "connections.max.reauth.ms=3600000",
        "listener.name.s.sasl.enabled.mechanisms=SCRAM-SHA-512",
        "listener.name.t.connections.max.reauth.ms=1000",
        "listener.name.t.sasl.enabled.mechanisms=PLAIN",
    )
    s, t = (one.config for one in listeners.clients)
    assert (s.sasl_enabled_mechanisms, s.connections_max_reauth_ms) == (("SCRAM-SHA-512",), 3600000)
    assert (t.sasl_enabled_mechanisms, t.connections_max_reauth_ms) == (("PLAIN",), 1000)
    (default,) = listeners_of(*SASL).clients
    assert default.config.sasl_enabled_mechanisms == ("SCRAM-SHA-256", "SCRAM-SHA-512")


def test_plain_without_tls_has_to_be_asked_for() -> None:
    plain = "sasl.enabled.mechanisms=SCRAM-SHA-512,PLAIN"
    (problem,) = problems_of(*SASL, plain)
    assert "listener S has no TLS" in problem
    assert problem.endswith("or listener.name.s.sasl.plain.without.tls.enable=true")
    assert listeners_of(*SASL, plain, "sasl.plain.without.tls.enable=true").clients
    tls = ("listeners=S://127.0.0.1:1", "listener.security.protocol.map=S:SASL_SSL")
    assert listeners_of(*tls, plain).clients
    assert listeners_of(plain).clients, "no listener asks for a login"


def test_mechanisms_are_those_that_there_are() -> None:
    (problem,) = problems_of(*SASL, "sasl.enabled.mechanisms=")
    assert "give listener.name.s.sasl.enabled.mechanisms=" in problem
    with pytest.raises(InvalidConfig, match="must be one of SCRAM-SHA-256, SCRAM-SHA-512, PLAIN"):
        listeners_of("sasl.enabled.mechanisms=GSSAPI")


@pytest.mark.parametrize("name", ["sasl.jaas.config", "listener.name.s.plain.sasl.jaas.config"])
def test_no_setting_names_a_login_module(name: str) -> None:
    """CVE-2023-25194: such settings had brokers load classes and ask foreign servers."""
    with pytest.raises(InvalidConfig, match=f"unknown setting '{re.escape(name)}'"):
        listeners_of(*SASL, f"{name}=com.sun.security.auth.module.JndiLoginModule required;")


def test_secrets_are_in_no_text_of_the_settings() -> None:
    given = ["--set", "ssl.keystore.key=canary-1", "--set", "ssl.key.password=canary-2"]
    settings = parse_settings(given, {})
    (listener,) = settings.listeners.clients
    assert listener.config.ssl_keystore_key == "canary-1"
    config = parse_config(NodeConfig, settings.config_overrides)
    assert config.ssl_key_password == "canary-2"
    assert "canary" not in repr(settings) + repr(config) + str(listener)
