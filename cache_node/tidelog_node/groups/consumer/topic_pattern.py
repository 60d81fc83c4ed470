r"""Patterns of names in RE2's syntax, matched in time that grows with the name alone.

A pattern comes from any client and is matched to every topic's name, or every transactional id,
on the node's event loop. Python's ``re`` backtracks and takes exponential time for patterns such
as ``(a*)*b``; RE2 never does. A pattern matches a whole name.

Source: RE2's syntax page; KIP-848 chose it for subscriptions, KIP-1152 for transactional ids.
"""

from __future__ import annotations

import re2

PATTERN_SIZE_MAX = 1000  # characters; Kafka has no limit
# RE2's limit for one pattern: two thirds for its program, the rest for its cache of matches. It
# bounds the time too: about 5,000 instructions, through which a hostile name of 249 characters
# takes up to a millisecond. ``.{1,249}`` has 2,244.
PATTERN_MEMORY_BYTES_MAX = 131_072


class InvalidPattern(ValueError):
    """The pattern is not valid in RE2, or too large."""


class TopicPattern:
    """A compiled pattern. Raises ``InvalidPattern``.

    The library keeps the 128 patterns that were used last, so compiling one again is cheap.
    """

    def __init__(self, pattern: str) -> None:
        if len(pattern) > PATTERN_SIZE_MAX:
            raise InvalidPattern(f"longer than {PATTERN_SIZE_MAX} characters")
        try:
            self._compiled = re2.compile(pattern, _OPTIONS)
        except re2.error as error:
            raise InvalidPattern(error.args[0].decode(errors="replace")) from None

    def matches(self, name: str) -> bool:
        """Return whether the pattern matches the whole name."""
        return self._compiled.fullmatch(name) is not None


def _options() -> re2.Options:
    options = re2.Options()
    options.max_mem = PATTERN_MEMORY_BYTES_MAX
    options.never_capture = True  # groups would select a slower engine of RE2
    options.log_errors = False  # it would print a client's pattern to stderr
    return options


_OPTIONS = _options()
