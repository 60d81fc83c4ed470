"""Every setting of how to reach a cluster: its name, and the values that it may have.

Names are Kafka's, and librdkafka's where they differ. The same names are in files of
``--command-config``, in contexts and in Spark's options; ``environment_name`` makes the names of
environment variables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tidelog_core.security.oauthbearer import OAUTHBEARER_MECHANISM

from tidelog.errors import InvalidConfig
from tidelog.wire.mechanisms import PASSWORD_MECHANISMS

# Each of Spark's Python processes looks at the names. Few have values to check: only those import
# the clients.

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
SECURITY_PREFIXES = ("ssl.", "sasl.", "security.", "https.")
AWS_IAM = "aws_iam"
TOKEN_RETRIEVERS = ("ClientCredentialsJwtRetriever", "DefaultJwtRetriever", "FileJwtRetriever")

Check = Callable[[str], None]
"""Raises ``ValueError`` with the end of the sentence «the setting …»."""


def _anything(value: str) -> None:
    pass


def _one_of(*allowed: str) -> Check:
    def check(value: str) -> None:
        if value.lower() not in map(str.lower, allowed):
            raise ValueError(f"must be one of {', '.join(name or 'nothing' for name in allowed)}")

    return check


def _pem(value: str) -> None:
    if value.upper() != "PEM":
        raise ValueError("must be PEM: convert keystores to PEM files")


def _servers(value: str) -> None:
    from tidelog.options import parse_bootstrap

    try:
        parse_bootstrap(value)
    except InvalidConfig:
        raise ValueError("must be host:port,…") from None


def _url(*schemes: str) -> Check:
    def check(value: str) -> None:
        if not value.startswith(tuple(f"{scheme}:" for scheme in schemes)):
            raise ValueError(f"must begin with {' or '.join(f'{one}:' for one in schemes)}")

    return check


def _token_endpoint(value: str) -> None:
    if value.startswith("file:"):
        return
    from tidelog.tokens.client_credentials import parse_endpoint

    try:
        parse_endpoint(value)
    except ValueError as error:
        raise ValueError(f"{error}, or file:///… of a token") from None


def _login_handler(value: str) -> None:
    if not value.endswith(".OAuthBearerLoginCallbackHandler"):
        raise ValueError(
            "must be Kafka's OAuthBearerLoginCallbackHandler: others are Java classes,"
            " which this program has not"
        )


def _token_retriever(value: str) -> None:
    if value.rpartition(".")[2] not in TOKEN_RETRIEVERS:
        raise ValueError(f"must be Kafka's {' or '.join(TOKEN_RETRIEVERS)}")


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting; ``also`` are its other names."""

    name: str
    about: str
    also: tuple[str, ...] = ()
    check: Check = _anything
    is_secret: bool = False
    is_path: bool = False

    @property
    def is_security(self) -> bool:
        """Whether it is about TLS or SASL."""
        return self.name.startswith(SECURITY_PREFIXES)


_OAUTH = "sasl.oauthbearer."
SETTINGS: tuple[Setting, ...] = (
    Setting("bootstrap.servers", "addresses to connect to first: host:port,…", check=_servers),
    Setting(
        "metadata.store",
        "the metadata store's URL",
        check=_url("sqlite", "dynamodb"),
    ),
    Setting("object.store", "the object store's URL", check=_url("file", "s3", "memory")),
    Setting("data.dir", "data directory of a cluster on this machine, for both", is_path=True),
    Setting("admin.url", "the admin API's URL", check=_url("https", "http")),
    Setting("schema.registry.url", "the schema registry's URL", check=_url("https", "http")),
    Setting(
        "schema.registry.basic.auth.user.info",
        "user:password for the schema registry",
        also=("basic.auth.user.info",),
        is_secret=True,
    ),
    Setting("security.protocol", ", ".join(PROTOCOLS), check=_one_of(*PROTOCOLS)),
    Setting(
        "ssl.truststore.location",
        "authorities of the nodes' certificates",
        also=("ssl.ca.location",),
        is_path=True,
    ),
    Setting("ssl.truststore.type", "PEM", check=_pem),
    Setting(
        "ssl.keystore.location",
        "the client's certificate, and its key",
        also=("ssl.certificate.location",),
        is_path=True,
    ),
    Setting("ssl.keystore.type", "PEM", check=_pem),
    Setting("ssl.key.location", "the client's key, if it is in a file of its own", is_path=True),
    Setting("ssl.key.password", "the password of the key", is_secret=True),
    Setting(
        "ssl.endpoint.identification.algorithm",
        "https, or none: nodes' names are not checked",
        check=_one_of("https", "none", ""),
    ),
    Setting(
        "sasl.mechanism",
        ", ".join((*PASSWORD_MECHANISMS, OAUTHBEARER_MECHANISM)),
        also=("sasl.mechanisms",),
        check=_one_of(*PASSWORD_MECHANISMS, OAUTHBEARER_MECHANISM),
    ),
    Setting("sasl.username", "the user"),
    Setting("sasl.password", "the user's password", is_secret=True),
    Setting("sasl.password.location", "a file with the password as its only line", is_path=True),
    Setting(
        "sasl.tokenauth",
        "true: the user is a delegation token's id, the password its HMAC",
        check=_one_of("true", "false"),
    ),
    Setting("sasl.jaas.config", "user and password as Java has them", is_secret=True),
    Setting(
        "sasl.login.callback.handler.class",
        "for Java's clients; Kafka's own for OAUTHBEARER",
        check=_login_handler,
    ),
    Setting(
        f"{_OAUTH}jwt.retriever.class",
        "for Java's clients; Kafka's own for client credentials and files",
        check=_token_retriever,
    ),
    Setting(f"{_OAUTH}method", "default or oidc", check=_one_of("default", "oidc")),
    Setting(
        f"{_OAUTH}token.endpoint.url",
        "where a client gets tokens, or file:///… of a token",
        check=_token_endpoint,
    ),
    Setting(
        f"{_OAUTH}client.id",
        "the client's id at the issuer",
        also=(f"{_OAUTH}client.credentials.client.id",),
    ),
    Setting(
        f"{_OAUTH}client.secret",
        "the client's secret",
        also=(f"{_OAUTH}client.credentials.client.secret",),
        is_secret=True,
    ),
    Setting(
        f"{_OAUTH}client.secret.location",
        "a file with the secret as its only line",
        is_path=True,
    ),
    Setting(f"{_OAUTH}scope", "the scope of the tokens"),
    Setting(f"{_OAUTH}extensions", "name=value,… that some clusters ask for"),
    Setting(
        f"{_OAUTH}header.urlencode",
        "true: id and secret are URL-encoded",
        check=_one_of("true", "false"),
    ),
    Setting(
        f"{_OAUTH}grant.type",
        "client_credentials",
        check=_one_of("client_credentials"),
    ),
    Setting(
        f"{_OAUTH}metadata.authentication.type",
        f"{AWS_IAM}: tokens of STS for the role of AWS",
        check=_one_of("none", AWS_IAM),
    ),
    Setting(f"{_OAUTH}config", f"for {AWS_IAM}: audience=…,region=…,duration_seconds=…"),
    Setting("https.ca.location", "authorities of the token endpoint's certificate", is_path=True),
)
# Of Java's clients; nothing here depends on them.
PASSED_OVER = frozenset(
    {
        "sasl.login.connect.timeout.ms",
        "sasl.login.read.timeout.ms",
        "sasl.login.refresh.buffer.seconds",
        "sasl.login.refresh.min.period.seconds",
        "sasl.login.refresh.window.factor",
        "sasl.login.refresh.window.jitter",
        "sasl.login.retry.backoff.max.ms",
        "sasl.login.retry.backoff.ms",
        "sasl.oauthbearer.clock.skew.seconds",
        "sasl.oauthbearer.jwt.validator.class",
        "sasl.oauthbearer.scope.claim.name",
        "sasl.oauthbearer.sub.claim.name",
    }
)

NAMED: Mapping[str, Setting] = {
    name: setting for setting in SETTINGS for name in (setting.name, *setting.also)
}
"""The settings by all of their names."""
SECURITY_NAMES = (
    *(name for name, setting in NAMED.items() if setting.is_security),
    *sorted(PASSED_OVER),
)
"""Every name of a setting of TLS and SASL."""


def environment_name(name: str) -> str:
    """Return the environment variable of a setting: ``TIDELOG_SASL_USERNAME``."""
    return "TIDELOG_" + name.upper().replace(".", "_")


def unknown(name: str, *, among: str = "") -> str:
    """Return the sentence for a name that is no setting; ``among`` begins those to show."""
    known = [setting.name for setting in SETTINGS if setting.name.startswith(among)]
    return f"{name} is not known, known are {', '.join(sorted(known))}"
