"""A node with a TLS listener for logins by every mechanism, tokens of an issuer included."""

from __future__ import annotations

from pathlib import Path

from tests.support.certificates import Authority
from tests.support.issuer import Issuer
from tests.support.sasl_node import MECHANISMS, SaslNode


class SecuredNode(SaslNode):
    """Has an authority, and an issuer whose tokens it takes."""

    def __init__(self, folder: Path, *, issuer: Issuer | None = None, **config: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.authority = Authority(folder / "authority")
        self.issuer = issuer or Issuer(folder / "keys.json")
        settings = {name.replace(".", "_"): text for name, text in self.issuer.settings.items()}
        super().__init__(
            folder / "node",
            listener_security_protocol_map="OPEN:PLAINTEXT,SASL:SASL_SSL",
            ssl_keystore_location=str(self.authority.node_pem()),
            listener_name_sasl_sasl_enabled_mechanisms=",".join((*MECHANISMS, "OAUTHBEARER")),
            **{**settings, **config},
        )
