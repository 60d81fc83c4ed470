"""Where the console listens, which cluster it shows, and whether visitors have to log in."""

from __future__ import annotations

import contextlib
import ipaddress
import ssl
from dataclasses import dataclass, field
from pathlib import Path

from tidelog.client_factory import ClientFactory
from tidelog.wire.sasl import Sasl
from tidelog_core.config import NodeConfig
from tidelog_core.errors import InvalidConfig
from tidelog_core.metadata.endpoints import PORT_MAX

HOST, PORT = "127.0.0.1", 9640
PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
CLIENT_ID = "tidelog-console"
REQUEST_TIMEOUT_MS = 10_000  # of one request to a node: a page should say soon that nobody answers


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleSettings:
    """The settings of one console. Raises ``InvalidConfig`` with every problem."""

    bootstrap_servers: str
    security_protocol: str = PROTOCOLS[0]  # of the nodes; with SASL, visitors log in
    ca_file: Path | None = None  # the authority of the nodes' certificates; None: the machine's
    metadata_url: str | None = None  # None: pages say what they cannot show
    objects_url: str | None = None
    node_http: tuple[str, ...] = ()  # host:port of nodes' /readyz and /metrics
    host: str = HOST
    port: int = PORT  # 0: a free one
    port_or_free: bool = False  # a free one if that one is in use
    host_names: tuple[str, ...] = ()  # names by which browsers reach it, beside the address
    certificate: Path | None = None  # PEM with key and certificates, for HTTPS
    is_behind_proxy: bool = False  # a proxy on the way encrypts
    # The settings with which the nodes were started: the stores have only those of later.
    node_config: NodeConfig = field(default_factory=NodeConfig)

    def __post_init__(self) -> None:
        problems = []
        if self.security_protocol not in PROTOCOLS:
            allowed = ", ".join(PROTOCOLS)
            problems.append(f"--security-protocol must be one of {allowed}")
        if not 0 <= self.port <= PORT_MAX:
            problems.append(f"--port must be from 0 to {PORT_MAX}")
        if not self.is_loopback:
            if not self.asks_to_log_in:
                problems.append(
                    f"--host {self.host} lets other machines in, and nobody has to log in: give "
                    "--security-protocol SASL_SSL, or listen on 127.0.0.1"
                )
            if not self.is_encrypted:
                problems.append(
                    f"passwords would reach {self.host} in the clear: give --certificate, or "
                    "--behind-proxy if a proxy on the same machine encrypts"
                )
        if problems:
            raise InvalidConfig(problems)

    @property
    def asks_to_log_in(self) -> bool:
        """Whether visitors log in with a user of the cluster."""
        return self.security_protocol.startswith("SASL")

    @property
    def is_loopback(self) -> bool:
        """Whether only programs of this machine can connect."""
        if self.host == "localhost":
            return True
        with contextlib.suppress(ValueError):
            return ipaddress.ip_address(self.host).is_loopback
        return False

    @property
    def is_encrypted(self) -> bool:
        """Whether browsers speak HTTPS, to this process or to a proxy before it."""
        return self.certificate is not None or self.is_behind_proxy

    def tls(self) -> ssl.SSLContext | None:
        """Return the context of the HTTPS server. Raises ``InvalidConfig``."""
        if self.certificate is None:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self.certificate, password="no password is set")
        except (OSError, ssl.SSLError) as error:
            raise InvalidConfig([f"--certificate {self.certificate}: {error}"]) from None
        return context

    def node_tls(self) -> ssl.SSLContext | None:
        """Return the context of connections to nodes: reads a file of authorities, for long.

        Raises ``InvalidConfig``.
        """
        if not self.security_protocol.endswith("SSL"):
            return None
        try:
            return ssl.create_default_context(cafile=self.ca_file)
        except (OSError, ssl.SSLError) as error:
            raise InvalidConfig([f"--ca-file {self.ca_file}: {error}"]) from None

    def clients(self, tls: ssl.SSLContext | None, sasl: Sasl | None) -> ClientFactory:
        """Return a factory of a visitor's clients; ``tls`` is the result of ``node_tls``."""
        return ClientFactory(
            self.bootstrap_servers,
            client_id=CLIENT_ID,
            request_timeout_ms=REQUEST_TIMEOUT_MS,
            ssl=tls,
            sasl=sasl,
        )
