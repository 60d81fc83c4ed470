"""Clients' TLS and login from settings by Kafka's names.

Names that differ between the Java client and librdkafka are both known. Keys and certificates are
PEM files. ``settings.names`` has every setting.
"""

from __future__ import annotations

import re
import ssl as ssl_module
from collections.abc import Mapping
from pathlib import Path

from tidelog_core.security.oauthbearer import OAUTHBEARER_MECHANISM

from tidelog.errors import InvalidConfig
from tidelog.options import Security
from tidelog.settings.given import Problem, find_wrong_values, in_java_words
from tidelog.settings.token_settings import token_login
from tidelog.tokens.client_credentials import read_secret
from tidelog.wire.mechanisms import PASSWORD_MECHANISMS
from tidelog.wire.sasl import Sasl, SaslToken

_JAAS_MODULE = re.compile(
    r"\s*[\w.]+\.(Scram|Plain|OAuthBearer)LoginModule\s+required\b(.*?);?\s*", re.DOTALL
)
_JAAS_OPTION = re.compile(r'([\w.]+)=(?:"((?:[^"\\]|\\.)*)"|([^\s";]+))')
_NO_CHECK = ("", "none")  # of ssl.endpoint.identification.algorithm
_LOGIN = ("sasl.username", "sasl.password", "sasl.password.location", "sasl.jaas.config")


def check_properties(properties: Mapping[str, str]) -> list[str]:
    """Return the problems of the settings, one sentence each. No file is read.

    A setting of TLS or SASL that is not known is a problem; other settings are passed over.
    """
    return [problem.text for problem in find_problems(properties)]


def find_problems(properties: Mapping[str, str]) -> list[Problem]:
    """Return the problems of the settings, each alone and all together. No file is read."""
    problems = find_wrong_values(properties)
    given = in_java_words(properties)
    if _protocol(given).startswith("SASL"):
        wrong = {name for problem in problems for name in problem.names}
        problems += [
            problem for problem in _login(given)[1] if not wrong.intersection(problem.names[:1])
        ]
    return problems


def connection_settings(properties: Mapping[str, str]) -> Security:
    """Return the ``ssl`` and ``sasl`` of clients. Raises ``InvalidConfig`` with every problem."""
    problems = check_properties(properties)
    if problems:
        raise InvalidConfig(problems)
    given = with_password(in_java_words(properties))
    protocol = _protocol(given)
    return Security(
        ssl=_ssl_context(given) if protocol.endswith("SSL") else None,
        sasl=_login(given)[0] if protocol.startswith("SASL") else None,
    )


def with_password(given: Mapping[str, str]) -> dict[str, str]:
    """Return the settings with the password instead of its file. Raises ``InvalidConfig``."""
    settings = dict(given)
    path = settings.pop("sasl.password.location", None)
    if path is not None:
        settings["sasl.password"] = read_secret(Path(path), "the password")
    return settings


def _protocol(given: Mapping[str, str]) -> str:
    return given.get("security.protocol", "PLAINTEXT").upper()


def _ssl_context(given: Mapping[str, str]) -> ssl_module.SSLContext:
    trusted = given.get("ssl.truststore.location")
    try:
        context = ssl_module.create_default_context(cafile=trusted)
        if given.get("ssl.endpoint.identification.algorithm", "https").lower() in _NO_CHECK:
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


def _login(given: Mapping[str, str]) -> tuple[Sasl | SaslToken | None, list[Problem]]:
    """Return the login and its problems; without problems there is a login."""
    mechanism = given.get("sasl.mechanism", "").upper()
    jaas, problems = _jaas_options(given, mechanism)
    if mechanism not in (*PASSWORD_MECHANISMS, OAUTHBEARER_MECHANISM):
        allowed = ", ".join((*PASSWORD_MECHANISMS, OAUTHBEARER_MECHANISM))
        text = f"the SASL mechanism must be one of {allowed}, not {mechanism!r}"
        problems.insert(0, Problem(("sasl.mechanism", "security.protocol"), text))
    if problems:
        return None, problems
    if mechanism == OAUTHBEARER_MECHANISM:
        return token_login(given, jaas)
    password = jaas.get("password") or given.get("sasl.password", "")
    if "sasl.password.location" in given:
        if password:
            text = "give one of sasl.password and sasl.password.location"
            return None, [Problem(("sasl.password.location",), text)]
        password = "in its file"
    user = jaas.get("username") or given.get("sasl.username", "")
    is_token = jaas.get("tokenauth") or given.get("sasl.tokenauth", "")
    sasl = Sasl(mechanism, user, password, is_delegation_token=is_token.lower() == "true")
    return sasl, [Problem((*_LOGIN, "sasl.mechanism"), text) for text in sasl.problems()]


def _jaas_options(given: Mapping[str, str], mechanism: str) -> tuple[dict[str, str], list[Problem]]:
    """Return the options of ``sasl.jaas.config``, or its problem."""
    jaas = given.get("sasl.jaas.config")
    if jaas is None:
        return {}, []
    module = _JAAS_MODULE.fullmatch(jaas)
    is_token = mechanism == OAUTHBEARER_MECHANISM
    if module is None or (module[1] == "OAuthBearer") is not is_token:
        wanted = (
            'OAuthBearerLoginModule required clientId="…" clientSecret="…";'
            if is_token
            else 'ScramLoginModule required username="…" password="…";'
        )
        return {}, [Problem(("sasl.jaas.config",), f"sasl.jaas.config must be {wanted}")]
    options = _JAAS_OPTION.findall(module[2])
    return {name: re.sub(r"\\(.)", r"\1", value) or bare for name, value, bare in options}, []
