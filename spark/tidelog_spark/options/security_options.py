"""The options of TLS and SASL, by Kafka's names. Files that they name are left to the tasks."""

from __future__ import annotations

from tidelog.settings.names import NAMED, SECURITY_NAMES

from tidelog_spark.options.option_reader import OptionReader

_PREFIX = "kafka."
SECURITY_OPTIONS = tuple(_PREFIX + name for name in SECURITY_NAMES)
# They may end with a space. JAAS has its secrets in quotes.
_SECRETS = {name for name, one in NAMED.items() if one.is_secret} - {"sasl.jaas.config"}

SecurityOptions = tuple[tuple[str, str], ...]
"""Settings of TLS and SASL by Kafka's names. Tasks make what they need of them themselves."""


def parse_security(reader: OptionReader) -> SecurityOptions:
    """Return the options of TLS and SASL. Problems are added to the reader's."""
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
