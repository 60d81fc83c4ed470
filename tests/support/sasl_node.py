"""A node process with an open listener and one where clients log in, and users."""

from __future__ import annotations

import re
from pathlib import Path

from confluent_kafka.admin import (
    AdminClient,
    NewTopic,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from tests.support.node_process import NodeProcess
from tools.ports import free_port

TOPIC = "t"
USER, PASSWORD = "alice", "canary-pässword"
ITERATIONS = 4096
SECONDS_MAX = 30.0
MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN")
_AUTHENTICATED = re.compile(
    r"client authenticated client='([^']*)' principal='([^']*)' mechanism='([^']*)'"
)


class SaslNode(NodeProcess):
    """Its ``address`` is that of the open listener."""

    def __init__(self, data_dir: Path, **config: str) -> None:
        """The names in ``config`` have ``_`` in place of ``.``."""
        port, self.sasl_port = free_port(), free_port()
        settings = {
            "listeners": f"OPEN://127.0.0.1:{port},SASL://127.0.0.1:{self.sasl_port}",
            "listener.security.protocol.map": "OPEN:PLAINTEXT,SASL:SASL_PLAINTEXT",
            "listener.name.sasl.sasl.enabled.mechanisms": ",".join(MECHANISMS),
            "listener.name.sasl.sasl.plain.without.tls.enable": "true",
            **{name.replace("_", "."): value for name, value in config.items()},
        }
        super().__init__(data_dir, port=port, config=settings, arguments=("--log-level", "DEBUG"))

    @property
    def sasl_address(self) -> str:
        """``host:port`` of the listener where clients log in."""
        return f"127.0.0.1:{self.sasl_port}"

    def prepare(self) -> None:
        """Create a topic and the user."""
        admin = AdminClient({"bootstrap.servers": self.address})
        admin.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result(SECONDS_MAX)
        self.set_password(PASSWORD)

    def set_password(self, password: str, user: str = USER) -> None:
        """Store the user's password for both mechanisms."""
        admin = AdminClient({"bootstrap.servers": self.address})
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
            info = ScramCredentialInfo(mechanism, ITERATIONS)
            upsertion = UserScramCredentialUpsertion(user, info, password.encode())
            for done in admin.alter_user_scram_credentials([upsertion]).values():
                done.result(SECONDS_MAX)

    def logins(self) -> list[tuple[str, str, str]]:
        """Return the address, principal and mechanism of every success so far."""
        return _AUTHENTICATED.findall(self.log)
