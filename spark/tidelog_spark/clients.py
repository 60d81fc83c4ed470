"""Makes the SDK's clients from the options of a read or a write."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from tidelog.settings.names import NAMED, SECURITY_NAMES

from tidelog_spark.option_reader import OptionReader

if TYPE_CHECKING:
    from tidelog.client_factory import ClientFactory

_PREFIX = "kafka."
SECURITY_OPTIONS = tuple(_PREFIX + name for name in SECURITY_NAMES)
# They may end with a space. JAAS has its secrets in quotes.
_SECRETS = {name for name, one in NAMED.items() if one.is_secret} - {"sasl.jaas.config"}

SecurityOptions = tuple[tuple[str, str], ...]
"""Settings of TLS and SASL by Kafka's names. Tasks make what they need of them themselves."""


class ConnectionOptions(Protocol):
    """Options for connecting to nodes."""

    @property
    def bootstrap_servers(self) -> str: ...
    @property
    def client_id(self) -> str: ...
    @property
    def request_timeout_ms(self) -> int: ...
    @property
    def security(self) -> SecurityOptions: ...


def client_factory(options: ConnectionOptions) -> ClientFactory:
    """Return the factory that makes the clients.

    Raises ``InvalidConfig`` where a file of keys or certificates cannot be used.
    """
    from tidelog.client_factory import ClientFactory
    from tidelog.settings.security import connection_settings

    return ClientFactory(
        options.bootstrap_servers,
        client_id=options.client_id,
        request_timeout_ms=options.request_timeout_ms,
        **connection_settings(dict(options.security)),
    )


def parse_security(reader: OptionReader) -> SecurityOptions:
    """Return the options of TLS and SASL. Problems are added; files are left to the tasks."""
    given: dict[str, str] = {}
    for option in filter(reader.has, SECURITY_OPTIONS):
        name = option.removeprefix(_PREFIX)
        given[name] = reader.text(option)
        if name in _SECRETS:
            given[name] = secret = reader.whole_text(option)
            if secret.endswith(("\n", "\r")):
                reader.problems.append(
                    f"option {option!r} ends in a line break, which would be part of the secret:"
                    " remove it, as with strip()"
                )
    if not given:
        return ()  # Spark's Python processes start sooner without the clients.
    from tidelog.settings.security import check_properties

    reader.problems += [f"options 'kafka.*': {problem}" for problem in check_properties(given)]
    return tuple(given.items())
