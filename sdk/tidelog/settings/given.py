"""A setting's value, and where it was given."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tidelog.settings.names import NAMED, PASSED_OVER, SECURITY_PREFIXES, unknown


@dataclass(frozen=True, slots=True)
class Given:
    """A value; ``place`` is a file with its line, or an environment variable."""

    value: str
    place: str

    def __repr__(self) -> str:
        """Without the value, which may be a secret."""
        return f"Given({self.place!r})"


@dataclass(frozen=True, slots=True)
class Problem:
    """Something wrong. ``names`` are the settings that it is about, the likeliest first."""

    names: tuple[str, ...]
    text: str

    def at(self, given: Mapping[str, Given]) -> str:
        """Return the sentence, after the place of the first setting that was given."""
        for name in self.names:
            for each in (name, *(NAMED[name].also if name in NAMED else ())):
                if each in given:
                    return f"{given[each].place}: {self.text}"
        return self.text


def find_wrong_values(settings: Mapping[str, str], *, is_closed: bool = False) -> list[Problem]:
    """Return the problems of names and values, each for itself.

    Unknown settings of TLS and SASL are problems, others only if ``is_closed``.
    """
    problems = []
    for name, value in settings.items():
        setting = NAMED.get(name)
        if setting is None:
            is_security = name.startswith(SECURITY_PREFIXES)
            if (is_security or is_closed) and name not in PASSED_OVER:
                among = name.partition(".")[0] + "." if is_security else ""
                problems.append(Problem((name,), unknown(name, among=among)))
            continue
        try:
            if "\0" in value:
                raise ValueError("must not have a NUL character")
            setting.check(value)
        except ValueError as error:
            problems.append(Problem((name,), f"{name} {error}"))
    return problems


def in_java_words(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings under their first names. That name counts if several are given."""
    named = sorted(settings.items(), key=lambda pair: pair[0] == _first_name(pair[0]))
    return {_first_name(name): value for name, value in named}


def _first_name(name: str) -> str:
    return NAMED[name].name if name in NAMED else name


def at_places(problems: Iterable[Problem], given: Mapping[str, Given]) -> list[str]:
    """Return the sentences of the problems, each with its place."""
    return [problem.at(given) for problem in problems]
