"""The listeners of a node, with their addresses and security protocols.

They are given as Kafka's settings ``listeners``, ``advertised.listeners``,
``listener.security.protocol.map`` and ``inter.broker.listener.name`` (KIP-103), or as the node's
arguments for one host and port. One listener is only for the other nodes. Nodes identify
themselves there by certificates that they publish, so its security protocol cannot be chosen.
"""

from __future__ import annotations

import contextlib
import ipaddress
import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from tidelog_core.config import ListenerConfig, NodeConfig, listener_config
from tidelog_core.errors import InvalidConfig
from tidelog_core.listener_settings import listener_setting_name
from tidelog_core.metadata.endpoints import NODE, PLAINTEXT, PORT_MAX
from tidelog_core.security.oauthbearer import OAUTHBEARER_MECHANISM
from tidelog_core.security.plain import PLAIN_MECHANISM

HOST_DEFAULT = "127.0.0.1"  # without a setting a node is not reachable from the network
PORT_DEFAULT = 9092
LISTENERS_MAX = 16
_LOOPBACK_NET = 127  # the first byte of its IPv4 addresses
_SENDING_SECRETS = (PLAIN_MECHANISM, OAUTHBEARER_MECHANISM)

_ADDRESS = re.compile(
    r"([A-Za-z0-9_-]{1,64})://(?:\[([0-9A-Fa-f:.%a-z]*)\]|([^\[\]:/]*)):([0-9]{1,5})"
)


class SecurityProtocol(StrEnum):
    """A listener's protection and identification of clients."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"

    @property
    def has_tls(self) -> bool:
        """Whether connections are encrypted."""
        return self in (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL)

    @property
    def has_sasl(self) -> bool:
        """Whether clients log in before their first request."""
        return self in (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """One address that the node listens on."""

    name: str  # in upper case
    host: str = HOST_DEFAULT  # "": all of the machine's addresses
    port: int = PORT_DEFAULT  # 0: a free port
    advertised_host: str = HOST_DEFAULT
    advertised_port: int | None = None  # None: the listening port
    protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT  # unused by the nodes' listener
    config: ListenerConfig = field(default_factory=ListenerConfig)

    @property
    def is_open(self) -> bool:
        """Whether it takes clients of other machines without asking who they are."""
        has_identity = self.protocol.has_sasl or (
            self.protocol.has_tls and self.config.ssl_client_auth == "required"
        )
        return not has_identity and not is_loopback(self.host)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listeners:
    """All listeners of a node. ``parse_listeners`` is the only maker outside of tests."""

    clients: tuple[Listener, ...] = (Listener(name=PLAINTEXT),)  # at least one
    nodes: Listener = Listener(name=NODE, port=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class AddressArguments:
    """The node's arguments for addresses; ``None``: not given."""

    host: str | None = None
    port: int | None = None
    advertised_host: str | None = None
    advertised_port: int | None = None
    inter_broker_port: int | None = None

    def names_of_clients(self) -> list[str]:
        """Return the arguments given that ``listeners`` replaces."""
        values = {
            "host": self.host,
            "port": self.port,
            "advertised_host": self.advertised_host,
            "advertised_port": self.advertised_port,
        }
        return [name for name, value in values.items() if value is not None]


def parse_listeners(
    config: NodeConfig,
    overrides: Mapping[str, Mapping[str, str]],
    arguments: AddressArguments,
) -> Listeners:
    """Return the node's listeners.

    ``overrides`` are the settings of single listeners by their lower-case names. Raises
    ``InvalidConfig`` with every problem at once.
    """
    problems: list[str] = []
    addresses = _addresses("listeners", config.listeners, problems)
    advertised = _addresses("advertised.listeners", config.advertised_listeners, problems)
    protocols = _protocols(config, problems)
    problems += _contradictions(config, arguments, addresses)
    if not config.listeners:
        host = arguments.host if arguments.host is not None else HOST_DEFAULT
        port = arguments.port if arguments.port is not None else PORT_DEFAULT
        addresses = {PLAINTEXT: (host, port)}
    problems += _wrong_names(config, overrides, addresses, advertised)
    of_nodes = config.inter_broker_listener_name.upper()
    listeners = {}
    for name, (host, port) in addresses.items():
        advertised_host, advertised_port = advertised.get(
            name, (arguments.advertised_host or host, arguments.advertised_port)
        )
        if is_wildcard(advertised_host):
            problems.append(_no_advertised_host(name, host, has_listeners=bool(config.listeners)))
        if advertised_port == 0:
            problems.append(
                f"advertised.listeners: the port of {name} must be from 1 to {PORT_MAX}"
            )
        if name not in protocols and name != of_nodes:
            problems.append(f"listener {name} has no protocol in listener.security.protocol.map")
        listeners[name] = Listener(
            name=name,
            host=host,
            port=port,
            advertised_host=advertised_host,
            advertised_port=advertised_port,
            protocol=protocols.get(name, SecurityProtocol.PLAINTEXT),
            config=_config_of(name, config, overrides.get(name.lower(), {}), problems),
        )
    clients = tuple(one for name, one in listeners.items() if name != of_nodes)
    problems += _problems_of_clients(clients)
    problems += _bearer_problems(config, clients)
    if problems:
        raise InvalidConfig(problems)
    return Listeners(
        clients=clients,
        nodes=_nodes_listener(of_nodes, listeners, clients[0], arguments.inter_broker_port),
    )


def is_wildcard(host: str) -> bool:
    """Return whether the address means all addresses of the machine, in any notation."""
    if not host:
        return True
    for family in (socket.AF_INET6, socket.AF_INET):
        with contextlib.suppress(OSError):
            return not any(socket.inet_pton(family, host))
    with contextlib.suppress(OSError):
        return not any(socket.inet_aton(host))  # also «0»
    return False


def is_loopback(host: str) -> bool:
    """Return whether only programs of this machine can connect to the address."""
    if host == "localhost":
        return True
    with contextlib.suppress(OSError, ValueError):
        return socket.inet_pton(socket.AF_INET, host)[0] == _LOOPBACK_NET
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return False


def _problems_of_clients(clients: Sequence[Listener]) -> Iterator[str]:
    if not clients:
        yield "listeners has none for clients"
    for listener in clients:
        if listener.protocol.has_sasl:
            yield from _sasl_problems(listener)


def _sasl_problems(listener: Listener) -> Iterator[str]:
    config = listener.config
    mechanisms = listener_setting_name(listener.name, "sasl.enabled.mechanisms")
    if not config.sasl_enabled_mechanisms:
        yield f"nobody can log in at listener {listener.name}: give {mechanisms}=SCRAM-SHA-512"
    readable = [name for name in _SENDING_SECRETS if name in config.sasl_enabled_mechanisms]
    if readable and not listener.protocol.has_tls and not config.sasl_plain_without_tls_enable:
        allowing = listener_setting_name(listener.name, "sasl.plain.without.tls.enable")
        yield (
            f"listener {listener.name} has no TLS, so anyone on the way could read the secrets of"
            f" {' and '.join(readable)}: make it SASL_SSL, or give {mechanisms}=SCRAM-SHA-512, or"
            f" {allowing}=true"
        )


def _bearer_problems(config: NodeConfig, clients: Sequence[Listener]) -> Iterator[str]:
    """Yield the settings without which anybody's token could be taken (CVE-2026-33557)."""
    if not any(OAUTHBEARER_MECHANISM in one.config.sasl_enabled_mechanisms for one in clients):
        return
    needed = {
        "sasl.oauthbearer.expected.issuer": config.sasl_oauthbearer_expected_issuer,
        "sasl.oauthbearer.expected.audience": config.sasl_oauthbearer_expected_audience,
        "sasl.oauthbearer.jwks.endpoint.url": config.sasl_oauthbearer_jwks_endpoint_url,
    }
    for name, value in needed.items():
        if not value:
            yield f"OAUTHBEARER needs {name}"


def _contradictions(
    config: NodeConfig,
    arguments: AddressArguments,
    addresses: Mapping[str, tuple[str, int]],
) -> Iterator[str]:
    """Yield the problems of addresses that are given twice."""
    if config.advertised_listeners and arguments.advertised_host is not None:
        yield "advertised_host cannot be given together with advertised.listeners"
    if not config.listeners:
        return
    if names := arguments.names_of_clients():
        yield f"{', '.join(names)} cannot be given together with listeners"
    of_nodes = config.inter_broker_listener_name.upper()
    if of_nodes in addresses and arguments.inter_broker_port is not None:
        yield f"inter_broker_port cannot be given together with {of_nodes} in listeners"
    ports = [port for _, port in addresses.values() if port]
    for port in sorted({port for port in ports if ports.count(port) > 1}):
        yield f"listeners has port {port} twice"


def _wrong_names(
    config: NodeConfig,
    overrides: Mapping[str, Mapping[str, str]],
    addresses: Mapping[str, tuple[str, int]],
    advertised: Mapping[str, tuple[str, int]],
) -> Iterator[str]:
    """Yield the problems of settings that name a listener."""
    for name in sorted(advertised.keys() - addresses.keys()):
        yield f"advertised.listeners names {name}, which is not in listeners"
    for name in sorted(overrides.keys() - {name.lower() for name in addresses}):
        yield f"listener.name.{name} names a listener that is not in listeners"
    of_nodes = config.inter_broker_listener_name.upper()
    if of_nodes in _protocols(config, []):
        yield (
            f"listener.security.protocol.map names {of_nodes}, the listener for nodes"
            " (inter.broker.listener.name): it has no security protocol"
        )


def _addresses(setting: str, list_text: str, problems: list[str]) -> dict[str, tuple[str, int]]:
    """Return host and port by listener name, in the order given."""
    addresses: dict[str, tuple[str, int]] = {}
    texts = _split(list_text)
    if len(texts) > LISTENERS_MAX:
        problems.append(f"{setting}: {len(texts)} listeners, allowed are {LISTENERS_MAX}")
        return addresses
    for text in texts:
        match = _ADDRESS.fullmatch(text)
        if match is None:
            problems.append(f"{setting}: {text!r} must be NAME://host:port")
            continue
        name, port = match[1].upper(), int(match[4])
        if port > PORT_MAX:
            problems.append(f"{setting}: the port of {name} must be from 0 to {PORT_MAX}")
        elif name in addresses:
            problems.append(f"{setting} names {name} twice")
        addresses.setdefault(name, (match[2] or match[3] or "", port))
    return addresses


def _protocols(config: NodeConfig, problems: list[str]) -> dict[str, SecurityProtocol]:
    protocols: dict[str, SecurityProtocol] = {}
    for text in _split(config.listener_security_protocol_map):
        name, _, protocol = text.partition(":")
        try:
            known = SecurityProtocol(protocol.strip().upper())
        except ValueError:
            problems.append(
                f"listener.security.protocol.map: {text!r} must be NAME:PROTOCOL with one of"
                f" {', '.join(SecurityProtocol)}"
            )
            continue
        if name.strip().upper() in protocols:
            problems.append(f"listener.security.protocol.map names {name.strip().upper()} twice")
        protocols[name.strip().upper()] = known
    return protocols


def _split(list_text: str) -> list[str]:
    return [part.strip() for part in list_text.split(",") if part.strip()]


def _config_of(
    name: str, node: NodeConfig, overrides: Mapping[str, str], problems: list[str]
) -> ListenerConfig:
    try:
        return listener_config(overrides, node)
    except InvalidConfig as error:
        beginning = listener_setting_name(name, "")
        problems.extend(f"{beginning}*: {problem}" for problem in error.problems)
        return ListenerConfig()


def _no_advertised_host(name: str, host: str, *, has_listeners: bool) -> str:
    if has_listeners:
        return (
            f"listener {name} listens on all addresses ({host!r}), which no client can reach:"
            f" give advertised.listeners={name}://host:port"
        )
    return f"advertised_host is required with host {host!r}, which no client can reach"


def _nodes_listener(
    name: str, listeners: Mapping[str, Listener], first: Listener, port: int | None
) -> Listener:
    """Return the listener for nodes; by default one at the first listener's hosts."""
    given = listeners.get(name)
    if given is not None:
        return given
    return Listener(
        name=name, host=first.host, port=port or 0, advertised_host=first.advertised_host
    )
