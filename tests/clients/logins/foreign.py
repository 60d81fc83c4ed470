"""Clients of other languages: one process of each for all logins, and kcat.

A driver reads a line for each login: address, mechanism, user, password, token (with SCRAM any text
says that user and password are a delegation token's), the authority's file, the client's own PEM file, topic and value, separated by tabs. It answers with
``ok <value>`` or ``refused <class> <text>``, separated by tabs too.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import confluent_kafka
import pytest

from tests.clients.logins.login import SECONDS_MAX, TOPIC, Login, Refused
from tests.clients.logins.python_clients import librdkafka_settings
from tests.support.drivers.process import ROOT
from tools import franz_go, kafka_java, kafkajs, kcat
from tools.java_options import QUICK_JAVA

DRIVERS = ROOT / "tests" / "support" / "drivers"


class ForeignClient:
    """A driver that is started by its first login."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._command = command
        self._environment = environment
        self._process: subprocess.Popen[str] | None = None

    def __call__(self, login: Login, value: str) -> str:
        """Log in; return the record."""
        process = self._process
        if process is None:
            process = self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, **self._environment},
                text=True,
            )
        assert process.stdin is not None
        assert process.stdout is not None
        fields = (
            *(login.address, login.mechanism, login.user, login.password),
            "a delegation token" if login.is_delegation_token else login.token,
            *(str(login.trusted), str(login.pem or ""), TOPIC, value),
        )
        process.stdin.write("\t".join(fields) + "\n")
        process.stdin.flush()
        outcome, *said = process.stdout.readline().rstrip("\n").split("\t")
        if outcome == "refused":
            raise Refused(*said)
        assert outcome == "ok", f"the driver ended with {process.wait(SECONDS_MAX)}"
        return said[0]

    def close(self) -> None:
        """End the driver."""
        if self._process is not None:
            self._process.communicate(timeout=SECONDS_MAX)


def java_client() -> ForeignClient:
    """Skips the test if there is no Java."""
    java, jars = shutil.which("java"), kafka_java.class_path()
    if java is None or jars is None:
        pytest.skip("needs java and Kafka's jars: run `make tools`")
    classes = kafka_java.compiled(DRIVERS / "LoginDriver.java")
    return ForeignClient([java, *QUICK_JAVA, "-cp", f"{jars}:{classes}", "LoginDriver"], {})


def kafkajs_client() -> ForeignClient:
    """Skips the test if there is no KafkaJS."""
    node, modules = shutil.which("node"), kafkajs.modules()
    if node is None or modules is None:
        pytest.skip("needs node and KafkaJS: run `make tools`")
    program = DRIVERS / "kafkajs_login_driver.js"
    return ForeignClient([node, str(program)], {"NODE_PATH": str(modules)})


def franz_go_client() -> ForeignClient:
    """Skips the test if there is no franz-go."""
    program = franz_go.command()
    if program is None:
        pytest.skip("needs go, or the driver of franz-go that it builds: run `make tools`")
    return ForeignClient([str(program)], {})


class Kcat:
    """kcat with the librdkafka of confluent-kafka, or with that of its own Debian."""

    def __init__(self, folder: Path | None) -> None:
        """``folder`` is for a link to the newer librdkafka; ``None`` for Debian's own."""
        found = kcat.command()
        if found is None:
            pytest.skip("kcat is not installed: run `make tools`")
        program, environment = found
        self._program, self._environment = program, dict(environment)
        if folder is not None:
            self._use_newer(folder)

    def _use_newer(self, folder: Path) -> None:
        libraries = Path(confluent_kafka.__file__).parent.with_name("confluent_kafka.libs")
        newer = list(libraries.glob("librdkafka-*.so.1"))
        if not newer:
            pytest.skip("confluent-kafka brings no librdkafka of its own here")
        (folder / "librdkafka.so.1").symlink_to(newer[0])
        earlier = self._environment.get("LD_LIBRARY_PATH", "")
        self._environment["LD_LIBRARY_PATH"] = f"{folder}:{libraries}:{earlier}"

    @property
    def is_old(self) -> bool:
        """Whether its librdkafka is the one of Debian 12."""
        return "librdkafka 2.0.2" in self._run(["-V"])

    def __call__(self, login: Login, value: str) -> str:
        """Log in; return the record."""
        settings = librdkafka_settings(login)
        del settings["log_level"]
        if login.token_endpoint:
            settings |= {
                "sasl.oauthbearer.method": "oidc",
                "sasl.oauthbearer.client.id": "kcat",
                "sasl.oauthbearer.client.secret": "secret",
                "sasl.oauthbearer.token.endpoint.url": login.token_endpoint,
            }
        given = [f"-X{name}={text}" for name, text in settings.items()]
        self._run(["-P", *given, "-t", TOPIC, "-p0"], text=value)
        # The last record of the partition: tests log in one after the other.
        return self._run(["-C", *given, "-t", TOPIC, "-p0", "-o-1", "-c1", "-e"])

    def close(self) -> None:
        """There is nothing that runs."""

    def _run(self, arguments: Sequence[str], *, text: str = "") -> str:
        done = subprocess.run(
            [self._program, *arguments, "-Xlog_level=3"],
            input=text,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )
        if done.returncode != 0:
            # It prints librdkafka's error, and has one exit status for all.
            raise Refused(f"exit status {done.returncode}", done.stderr)
        return done.stdout.strip()
