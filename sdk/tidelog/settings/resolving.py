"""How to reach a cluster, from everything that says so.

An environment variable counts before a file of ``--command-config``, that before a context, and
that before a default. An argument of the program counts before all of them.

A file of ``--command-config`` is a whole: with one, nothing of the context's TLS and login is used.
Else a login would be sent to another cluster than its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tidelog.errors import InvalidConfig
from tidelog.options import Security
from tidelog.settings.context_file import CONTEXT_VARIABLE, read_contexts
from tidelog.settings.given import Given, at_places, find_wrong_values, in_java_words
from tidelog.settings.names import NAMED, SECURITY_PREFIXES, environment_name
from tidelog.settings.properties_file import read_given
from tidelog.settings.security import connection_settings, find_problems, with_password

DEFAULT_BOOTSTRAP = "localhost:9092"
OLD_BOOTSTRAP = "TIDELOG_BOOTSTRAP"  # counts if its new name is not set
_VARIABLES = {environment_name(name): name for name in NAMED}
_SECURITY_VARIABLES = tuple(map(environment_name, SECURITY_PREFIXES))
# Of a service that is called tidelog-ssl, in every pod.
_KUBERNETES = re.compile(r"_(SERVICE_(HOST|PORT)|PORT)(_|$)")
_PASSWORD = ("sasl.password", "sasl.password.location")
_SECRET = ("sasl.oauthbearer.client.secret", "sasl.oauthbearer.client.secret.location")
# A setting takes the place of these, if they are given with less precedence.
_INSTEAD_OF: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(_PASSWORD, (*_PASSWORD, "sasl.jaas.config")),
    **dict.fromkeys(_SECRET, (*_SECRET, "sasl.jaas.config")),
    "sasl.username": ("sasl.jaas.config", "sasl.tokenauth"),
    "sasl.jaas.config": ("sasl.username", "sasl.tokenauth", *_PASSWORD),
    "data.dir": ("metadata.store", "object.store"),
    "metadata.store": ("data.dir",),
    "object.store": ("data.dir",),
}


@dataclass(frozen=True, slots=True)
class Connection:
    """The settings that count, under their first names, each with its place."""

    settings: Mapping[str, Given]
    context: str | None  # None: no context is used
    notes: tuple[str, ...] = ()  # for the user, one sentence each

    def get(self, name: str) -> str | None:
        """Return the value of a setting. None: it is not given."""
        given = self.settings.get(name)
        return None if given is None else given.value

    @property
    def bootstrap_servers(self) -> str:
        """The addresses to connect to first."""
        return self.get("bootstrap.servers") or DEFAULT_BOOTSTRAP

    def security(self) -> Security:
        """Return clients' TLS and login. Raises ``InvalidConfig`` with every problem."""
        return connection_settings(self._checked_values())

    def kafka_options(self) -> dict[str, str]:
        """Return TLS and login as Spark's options have them.

        Passwords are in them, because tasks have not the files that the driver has. Raises
        ``InvalidConfig``.
        """
        settings = with_password(self._checked_values())
        return {
            f"kafka.{name}": value
            for name, value in settings.items()
            if name.startswith(SECURITY_PREFIXES)
        }

    def _checked_values(self) -> dict[str, str]:
        values = {name: given.value for name, given in self.settings.items()}
        problems = find_problems(values)
        if problems:
            raise InvalidConfig(at_places(problems, self.settings))
        return values


def resolve(
    environ: Mapping[str, str], *, context: str | None = None, properties: Path | None = None
) -> Connection:
    """Return how to reach the cluster. ``properties`` is a file of ``--command-config``.

    ``context`` is one that the user names; None: that of the environment, or the file's current
    one. Raises ``InvalidConfig`` with every problem of the files and the environment.
    """
    problems: list[str] = []
    variables = _of_environment(environ, problems)
    of_file = _of_file(properties, problems)
    chosen, of_context, notes = _of_context(environ, context, problems)
    if problems:
        raise InvalidConfig(problems)
    if properties is not None:
        of_context = {
            name: given
            for name, given in of_context.items()
            if not name.startswith(SECURITY_PREFIXES)
        }
    layers = [_first_names(layer) for layer in (of_context, of_file, variables)]
    servers = layers[-1].get("bootstrap.servers")
    if context is not None and servers is not None:
        notes.append(f"{servers.place} counts before the addresses of the context {context!r}")
    settings = _merged(layers)
    login = settings.get("sasl.mechanism")
    if login is not None and "security.protocol" not in settings:
        notes.append(f"{login.place}: a login needs security.protocol=SASL_SSL, and is not used")
    return Connection(settings, chosen, tuple(notes))


def _of_environment(environ: Mapping[str, str], problems: list[str]) -> dict[str, Given]:
    found: dict[str, Given] = {}
    for variable, value in environ.items():
        if variable in _VARIABLES and value:
            found[_VARIABLES[variable]] = Given(value, variable)
        elif variable not in _VARIABLES and _is_meant(variable):
            known = ", ".join(sorted(v for v in _VARIABLES if v.startswith(_SECURITY_VARIABLES)))
            problems.append(f"{variable} is not known, known are {known}")
    if (old := environ.get(OLD_BOOTSTRAP)) and "bootstrap.servers" not in found:
        found["bootstrap.servers"] = Given(old, OLD_BOOTSTRAP)
    values = {name: given.value for name, given in found.items()}
    problems += at_places(find_wrong_values(values), found)
    return found


def _is_meant(variable: str) -> bool:
    """Whether a variable that is none of ours looks like one, so that it is a mistake."""
    return variable.startswith(_SECURITY_VARIABLES) and not _KUBERNETES.search(variable)


def _of_file(path: Path | None, problems: list[str]) -> dict[str, Given]:
    if path is None:
        return {}
    try:
        found = read_given(path)
    except InvalidConfig as error:
        problems += error.problems
        return {}
    values = {name: given.value for name, given in found.items()}
    problems += at_places(find_wrong_values(values), found)
    return found


def _of_context(
    environ: Mapping[str, str], named: str | None, problems: list[str]
) -> tuple[str | None, Mapping[str, Given], list[str]]:
    """Return the context that counts, its settings, and what to tell the user."""
    try:
        file = read_contexts(environ)
        chosen = named or environ.get(CONTEXT_VARIABLE) or file.current
        problems += file.problems
        settings = {} if chosen is None else file.context(chosen)
    except InvalidConfig as error:
        problems += error.problems
        return None, {}, []
    return chosen, settings, [] if file.warning is None else [file.warning]


def _first_names(layer: Mapping[str, Given]) -> dict[str, Given]:
    """Return the settings under their first names."""
    words = in_java_words({name: name for name in layer})
    return {name: layer[given_as] for name, given_as in words.items()}


def _merged(layers: Iterable[Mapping[str, Given]]) -> dict[str, Given]:
    """Return the settings of all layers; the last one counts most."""
    merged: dict[str, Given] = {}
    for layer in layers:
        instead_of = {other for name in layer for other in _INSTEAD_OF.get(name, ())}
        merged = {name: given for name, given in merged.items() if name not in instead_of}
        merged |= layer
    return merged
