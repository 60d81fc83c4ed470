"""Connection settings by Kafka's names, as files for Kafka's tools and librdkafka have them.

    security.protocol=SASL_SSL
    ssl.truststore.location=/etc/tidelog/authority.pem
    sasl.mechanism=SCRAM-SHA-512
    sasl.username=alice
    sasl.password=…

Names that differ between the Java client and librdkafka are both known. Keys and certificates are
PEM files.
"""

from __future__ import annotations

import re
import ssl as ssl_module
from collections.abc import Mapping
from pathlib import Path

from tidelog.errors import InvalidConfig
from tidelog.options import Security
from tidelog.wire.sasl import Sasl

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")

# Java's names, and librdkafka's where they differ.
_OTHER_NAMES: Mapping[str, str] = {
    "sasl.mechanisms": "sasl.mechanism",
    "ssl.ca.location": "ssl.truststore.location",
    "ssl.certificate.location": "ssl.keystore.location",
}
_KNOWN = frozenset(
    {
        "security.protocol",
        "sasl.mechanism",
        "sasl.username",
        "sasl.password",
        "sasl.jaas.config",
        "ssl.truststore.location",
        "ssl.truststore.type",
        "ssl.keystore.location",
        "ssl.keystore.type",
        "ssl.key.location",
        "ssl.key.password",
        "ssl.endpoint.identification.algorithm",
    }
)
SECURITY_NAMES = (*sorted(_KNOWN), *_OTHER_NAMES)
"""Every setting of TLS and SASL."""

_JAAS_MODULE = re.compile(
    r"\s*[\w.]+\.(?:Scram|Plain)LoginModule\s+required\s+(.*?);?\s*", re.DOTALL
)
_JAAS_OPTION = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def read_properties(path: Path) -> dict[str, str]:
    """Return the settings of a file of ``name=value`` lines; ``#`` and ``!`` begin comments.

    Raises ``InvalidConfig`` if it cannot be read.
    """
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfig([f"cannot read {path}: {error}"]) from None
    settings: dict[str, str] = {}
    problems = []
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text[0] in "#!":
            continue
        name, equals, value = text.partition("=")
        if not equals:
            problems.append(f"{path}, line {number}: it must be name=value")
        settings[name.strip()] = value.strip()
    if problems:
        raise InvalidConfig(problems)
    return settings


def check_properties(properties: Mapping[str, str]) -> list[str]:
    """Return the problems of the settings, one sentence each. No file is read.

    A setting of TLS or SASL that is not known is a problem; other settings are passed over.
    """
    given = _with_java_names(properties)
    problems = [
        f"{name} is not known, known are {', '.join(sorted(_KNOWN))}"
        for name in given
        if name.startswith(("ssl.", "sasl.", "security.")) and name not in _KNOWN
    ]
    problems += [
        f"{name} must be PEM: convert keystores to PEM files"
        for name in ("ssl.truststore.type", "ssl.keystore.type")
        if given.get(name, "PEM").upper() != "PEM"
    ]
    protocol = _protocol(given)
    if protocol not in PROTOCOLS:
        problems.append(f"security.protocol must be one of {', '.join(PROTOCOLS)}")
    elif protocol.startswith("SASL"):
        try:
            problems += _sasl(given).problems()
        except InvalidConfig as error:
            problems += error.problems
    return problems


def connection_settings(properties: Mapping[str, str]) -> Security:
    """Return the ``ssl`` and ``sasl`` of clients. Raises ``InvalidConfig`` with every problem."""
    problems = check_properties(properties)
    if problems:
        raise InvalidConfig(problems)
    given = _with_java_names(properties)
    protocol = _protocol(given)
    return Security(
        ssl=_ssl_context(given) if protocol.endswith("SSL") else None,
        sasl=_sasl(given) if protocol.startswith("SASL") else None,
    )


def _with_java_names(properties: Mapping[str, str]) -> dict[str, str]:
    return {_OTHER_NAMES.get(name, name): value for name, value in properties.items()}


def _protocol(given: Mapping[str, str]) -> str:
    return given.get("security.protocol", "PLAINTEXT").upper()


def _ssl_context(given: Mapping[str, str]) -> ssl_module.SSLContext:
    trusted = given.get("ssl.truststore.location")
    try:
        context = ssl_module.create_default_context(cafile=trusted)
        if not given.get("ssl.endpoint.identification.algorithm", "https"):
            context.check_hostname = False
        pair = given.get("ssl.keystore.location")
        if pair is not None:
            # Without a password OpenSSL would ask for one on the terminal.
            password = given.get("ssl.key.password", "") or "no password is set"
            context.load_cert_chain(pair, given.get("ssl.key.location"), password)
    except (OSError, ssl_module.SSLError) as error:
        names = "ssl.truststore.location, ssl.keystore.location and ssl.key.location"
        raise InvalidConfig([f"{names} must be PEM files: {error}"]) from None
    return context


def _sasl(given: Mapping[str, str]) -> Sasl:
    """Return the login, which is not checked. Raises ``InvalidConfig``."""
    user, password = given.get("sasl.username", ""), given.get("sasl.password", "")
    jaas = given.get("sasl.jaas.config")
    if jaas is not None:
        module = _JAAS_MODULE.fullmatch(jaas)
        if module is None:
            wanted = 'ScramLoginModule required username="…" password="…";'
            raise InvalidConfig([f"sasl.jaas.config must be {wanted}"])
        options = {
            name: re.sub(r"\\(.)", r"\1", value) for name, value in _JAAS_OPTION.findall(module[1])
        }
        user, password = options.get("username", ""), options.get("password", "")
    return Sasl(given.get("sasl.mechanism", ""), user, password)
