"""A node with a TLS listener for logins by every mechanism, and one for certificates."""

from __future__ import annotations

from pathlib import Path

from tests.support.certificates import Authority
from tests.support.issuer import Issuer
from tests.support.sasl_node import MECHANISMS, SaslNode
from tools.ports import free_port


class SecuredNode(SaslNode):
    """Has an authority, which signs clients' certificates too, and an issuer of tokens."""

    def __init__(self, folder: Path, *, issuer: Issuer | None = None, **config: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.authority = Authority(folder / "authority")
        self.issuer = issuer or Issuer(folder / "keys.json")
        settings = {name.replace(".", "_"): text for name, text in self.issuer.settings.items()}
        super().__init__(
            folder / "node",
            ssl_keystore_location=str(self.authority.node_pem()),
            listener_name_sasl_sasl_enabled_mechanisms=",".join((*MECHANISMS, "OAUTHBEARER")),
            **{**settings, **config},
        )
        self.tls_port = free_port()
        self.config["listeners"] += f",TLS://127.0.0.1:{self.tls_port}"
        self.config |= {
            "listener.security.protocol.map": "OPEN:PLAINTEXT,SASL:SASL_SSL,TLS:SSL",
            "listener.name.tls.ssl.client.auth": "required",
            "ssl.truststore.location": str(self.authority.trusted),
        }

    @property
    def tls_address(self) -> str:
        """``host:port`` of the listener that asks for certificates."""
        return f"127.0.0.1:{self.tls_port}"
