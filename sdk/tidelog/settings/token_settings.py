"""The source of a client's tokens, as its settings say (OAUTHBEARER).

    sasl.oauthbearer.token.endpoint.url=https://…      an issuer, with an id and a secret
    sasl.oauthbearer.token.endpoint.url=file:///…      a file with a token
    sasl.oauthbearer.metadata.authentication.type=aws_iam     STS, for the role of AWS

Names are those of Kafka's ``OAuthBearerLoginCallbackHandler`` (KIP-768, KIP-1139), of librdkafka,
and for AWS of confluent-kafka.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tidelog.settings.given import Problem
from tidelog.settings.names import AWS_IAM
from tidelog.tokens.cached_tokens import shared_tokens
from tidelog.tokens.client_credentials import ClientCredentials
from tidelog.tokens.iam_token import DEFAULT_DURATION_SECONDS, IamToken
from tidelog.tokens.token_file import TokenFile
from tidelog.wire.sasl import SaslToken

_PREFIX = "sasl.oauthbearer."
_URL, _TYPE = f"{_PREFIX}token.endpoint.url", f"{_PREFIX}metadata.authentication.type"
_ID, _SECRET = f"{_PREFIX}client.id", f"{_PREFIX}client.secret"
_SECRET_FILE, _CONFIG = f"{_PREFIX}client.secret.location", f"{_PREFIX}config"
_EXTENSIONS, _JAAS = f"{_PREFIX}extensions", "sasl.jaas.config"
_OF_JAAS = {
    "clientId": _ID,
    "clientSecret": _SECRET,
    "scope": f"{_PREFIX}scope",
    "ssl.truststore.location": "https.ca.location",
}
_JAAS_EXTENSION = "extension_"
_AWS_NAMES = ("audience", "region", "duration_seconds", "signing_algorithm", "sts_endpoint")


def token_login(
    given: Mapping[str, str], jaas: Mapping[str, str]
) -> tuple[SaslToken | None, list[Problem]]:
    """Return the login, or its problems. ``jaas`` has the options of ``sasl.jaas.config``."""
    settings = {_OF_JAAS[name]: value for name, value in jaas.items() if name in _OF_JAAS}
    settings |= given
    problems: list[Problem] = []
    extensions = tuple(_pairs(settings, _EXTENSIONS, problems)) + tuple(
        (name.removeprefix(_JAAS_EXTENSION), value)
        for name, value in jaas.items()
        if name.startswith(_JAAS_EXTENSION)
    )
    url = settings.get(_URL, "")
    token: Callable[[], str] | Callable[[], Awaitable[str]]
    if settings.get(_TYPE, "none").lower() == AWS_IAM:
        token = _of_aws(settings, problems)
    elif url.startswith("file:"):
        token = _of_file(url, problems)
    elif url:
        token = shared_tokens(_of_issuer(url, settings, problems)).token
    else:
        problems.append(
            Problem(
                ("sasl.mechanism",),
                f"OAUTHBEARER needs {_URL}, an address of tokens or file:///… of one,"
                f" or {_TYPE}={AWS_IAM}",
            )
        )
        return None, problems
    login = SaslToken(token, extensions)
    problems += [Problem((_EXTENSIONS, _JAAS), problem) for problem in login.problems()]
    return (None if problems else login), problems


def _of_issuer(url: str, settings: Mapping[str, str], problems: list[Problem]) -> ClientCredentials:
    has_file = _SECRET_FILE in settings
    if not settings.get(_ID) or not (settings.get(_SECRET) or has_file):
        problems.append(Problem((_URL, _JAAS), f"{_URL} needs {_ID} and {_SECRET}"))
    if has_file and _SECRET in settings:
        problems.append(Problem((_SECRET_FILE,), f"give one of {_SECRET} and {_SECRET_FILE}"))
    authority = settings.get("https.ca.location")
    return ClientCredentials(
        endpoint=url,
        client_id=settings.get(_ID, ""),
        client_secret=settings.get(_SECRET, ""),
        secret_file=Path(settings[_SECRET_FILE]) if has_file else None,
        scope=settings.get(f"{_PREFIX}scope", ""),
        authority=Path(authority) if authority else None,
        is_urlencoded=settings.get(f"{_PREFIX}header.urlencode", "").lower() == "true",
    )


def _of_file(url: str, problems: list[Problem]) -> TokenFile:
    parts = urlsplit(url)
    path = Path(unquote(parts.path))
    if parts.netloc not in {"", "localhost"} or not path.is_absolute() or "\0" in str(path):
        problems.append(Problem((_URL,), f"{_URL} must be file:///… with the file's whole path"))
    return TokenFile(path)


def _of_aws(settings: Mapping[str, str], problems: list[Problem]) -> IamToken:
    given = dict(_pairs(settings, _CONFIG, problems))
    for name in given.keys() - set(_AWS_NAMES):
        known = ", ".join(_AWS_NAMES)
        problems.append(Problem((_CONFIG,), f"{_CONFIG}: {name} is not known, known are {known}"))
    duration = given.get("duration_seconds", str(DEFAULT_DURATION_SECONDS))
    token = IamToken(
        audience=given.get("audience", ""),
        duration_seconds=int(duration) if duration.isdecimal() and len(duration) < 9 else 0,
        algorithm=given.get("signing_algorithm", "ES384"),
        region=given.get("region") or None,
        endpoint=given.get("sts_endpoint") or None,
    )
    problems += [Problem((_CONFIG, _TYPE), f"{_CONFIG}: {text}") for text in token.problems()]
    return token


def _pairs(
    settings: Mapping[str, str], name: str, problems: list[Problem]
) -> list[tuple[str, str]]:
    """Return the pairs of ``name=value,…``."""
    pairs = []
    for part in filter(None, (one.strip() for one in settings.get(name, "").split(","))):
        key, equals, value = part.partition("=")
        if not equals:
            problems.append(Problem((name,), f"{name} must be name=value,…"))
        pairs.append((key.strip(), value.strip()))
    return pairs
