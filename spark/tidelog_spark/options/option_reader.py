"""Reads the options of a read or a write by name, and collects the problems.

Names are case-insensitive: Spark passes them in lower case.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

T = TypeVar("T")


class OptionReader:
    """Returns options. Problems are added to ``problems``, and a default is returned."""

    def __init__(self, given: Mapping[str, str], names: Sequence[str]) -> None:
        """``names`` are all existing options, spelled and ordered as in messages."""
        self.problems: list[str] = []
        self._given = {name.lower(): (name, str(text)) for name, text in given.items()}
        self._names = names
        self._spelled = {name.lower(): name for name in names}

    def report_unknown_names(self, refusal: Callable[[str], str | None]) -> None:
        """Add a problem for every unknown name.

        ``refusal`` gets a name in lower case and returns the reason why it is not accepted, or
        ``None`` if it is accepted or unknown.
        """
        for lower, (given_name, _) in sorted(self._given.items()):
            name = self._spelled.get(lower, given_name)
            if (reason := refusal(lower)) is not None:
                self.problems.append(f"option {name!r} {reason}")
            elif lower not in self._spelled:
                self.problems.append(f"unknown option {name!r}: {self._nearest(lower)}")

    def has(self, name: str) -> bool:
        """Return whether the option is given."""
        return name.lower() in self._given

    def text(self, name: str) -> str:
        """Return the text of a given option, without white space around it."""
        return self.whole_text(name).strip()

    def whole_text(self, name: str) -> str:
        """Return the text of a given option, for keys and secrets, which may end with a space."""
        return self._given[name.lower()][1]

    def required(self, name: str, parse: Callable[[str], str], *, example: str) -> str:
        """Return the value of a required, non-empty option."""
        if self.has(name) and self.text(name):
            return self.parsed(name, parse, default="")
        self.problems.append(f"option {name!r} is missing: give {example}")
        return ""

    def parsed(self, name: str, parse: Callable[[str], T], *, default: T) -> T:
        """Return the parsed value. ``parse`` raises ``ValueError`` naming the expected form."""
        if not self.has(name):
            return default
        try:
            return parse(self.text(name))
        except ValueError as error:
            self.problems.append(f"option {name!r} is {self.text(name)!r}: it {error}")
            return default

    def choice(self, name: str, choices: Mapping[str, T], *, default: T) -> T:
        """Return the value for the option's word, which is case-insensitive."""

        def parse(text: str) -> T:
            if text.lower() not in choices:
                raise ValueError(f"must be one of {', '.join(choices)}")
            return choices[text.lower()]

        return self.parsed(name, parse, default=default)

    def _nearest(self, lower: str) -> str:
        near = difflib.get_close_matches(lower, self._spelled, n=1, cutoff=0.5)
        if near:
            return f"did you mean {self._spelled[near[0]]!r}?"
        return f"the options are {', '.join(self._names)}"
