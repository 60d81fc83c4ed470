r"""Patterns of names in RE2's syntax, matched in time that grows with the name alone.

A pattern comes from any client and is matched to every topic's name, or every transactional id,
on the node's one loop, so it must not be able to take long: Python's ``re`` backtracks and takes
time that grows exponentially for patterns such as ``(a*)*b``. Here the pattern becomes a
nondeterministic automaton (Thompson's construction), whose sets of states become a deterministic
one as names need them. A pattern matches a whole name.

What is understood, of RE2: literals and escapes (``\.``, ``\x41``, ``\x{41}``, ``\Q…\E``),
``.``, classes (``[a-z]``, ``[^…]``, ``\d \w \s`` and their negations, ``[[:alpha:]]``),
groups (plain, ``(?:…)``, ``(?P<n>…)``, ``(?<n>…)``), the flags ``i``, ``s``, ``m`` and
``U``, alternatives, ``* + ? {n} {n,} {n,m}`` and their lazy twins, ``^ $ \A \z \b \B``.
Backreferences and lookaround are errors, as in RE2, and so are Unicode's classes
(``\pL``), which no topic name needs: those are of ``[a-zA-Z0-9._-]``. Of lines nothing is
known: ``.`` is any character, ``^`` and ``$`` are where the name begins and ends.

Source: RE2's syntax page; KIP-848 chose it for subscriptions, KIP-1152 for transactional ids.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum

PATTERN_SIZE_MAX = 1000  # characters; one of Kafka may be longer, and nobody has such
REPEAT_MAX = 1000  # RE2's own
STATES_MAX = 10_000  # of the automaton; nested counts multiply
DEPTH_MAX = 50  # of groups; each takes a few frames of Python's stack
CACHED_SETS_MAX = 2_000

_WORD = frozenset(string.ascii_letters + string.digits + "_")


@dataclass(frozen=True, slots=True)
class _Characters:
    """A set of characters, or where it is negated all others."""

    ranges: tuple[tuple[str, str], ...] = ()  # the last of each included
    parts: tuple[_Characters, ...] = ()
    is_negated: bool = False
    ignores_case: bool = False

    def __contains__(self, character: str) -> bool:
        twins = {character}
        if self.ignores_case:
            twins |= {character.lower(), character.upper()}
        is_member = any(low <= twin <= high for low, high in self.ranges for twin in twins) or any(
            twin in part for part in self.parts for twin in twins
        )
        return is_member != self.is_negated

    @property
    def single(self) -> str:
        """The only member, empty where there are others."""
        if self.parts or self.is_negated or len(self.ranges) != 1:
            return ""
        low, high = self.ranges[0]
        return low if low == high else ""

    def negated(self) -> _Characters:
        return _Characters(parts=(self,), is_negated=True)


def _just(*characters: str) -> _Characters:
    return _Characters(tuple((character, character) for character in characters))


_ANY = _Characters(is_negated=True)
_LETTERS = (("a", "z"), ("A", "Z"))
_DIGITS = ("0", "9")
_CLASSES = {
    "d": _Characters((_DIGITS,)),
    "w": _Characters((*_LETTERS, _DIGITS, ("_", "_"))),
    "s": _just(*"\t\n\f\r "),
}
_POSIX = {
    "alnum": _Characters((*_LETTERS, _DIGITS)),
    "alpha": _Characters(_LETTERS),
    "ascii": _Characters((("\0", "\x7f"),)),
    "blank": _just(*"\t "),
    "cntrl": _Characters((("\0", "\x1f"), ("\x7f", "\x7f"))),
    "digit": _Characters((_DIGITS,)),
    "graph": _Characters((("!", "~"),)),
    "lower": _Characters((("a", "z"),)),
    "print": _Characters(((" ", "~"),)),
    "punct": _just(*string.punctuation),
    "space": _just(*"\t\n\v\f\r "),
    "upper": _Characters((("A", "Z"),)),
    "word": _Characters((*_LETTERS, _DIGITS, ("_", "_"))),
    "xdigit": _Characters((_DIGITS, ("a", "f"), ("A", "F"))),
}
_ESCAPES = {"a": "\a", "f": "\f", "t": "\t", "n": "\n", "r": "\r", "v": "\v"}


class InvalidPattern(ValueError):
    """The pattern is not RE2's, or too large."""


class _At(Enum):
    """Something that holds between two characters."""

    BEGIN = "begin"
    END = "end"
    WORD_EDGE = "edge"
    NO_WORD_EDGE = "no edge"


@dataclass(slots=True)
class _State:
    """Goes on by a character, by a condition, or freely."""

    characters: _Characters | None = None
    condition: _At | None = None
    following: list[int] = field(default_factory=list)


_Fragment = Callable[[int], int]
"""Adds its states in front of the state given, and returns where it begins."""


class TopicPattern:
    """A pattern, ready to be matched. Raises ``InvalidPattern``."""

    def __init__(self, pattern: str) -> None:
        if len(pattern) > PATTERN_SIZE_MAX:
            raise InvalidPattern(f"longer than {PATTERN_SIZE_MAX} characters")
        self._states: list[_State] = []
        self._end = self._add(_State())
        self._begin = _Parser(pattern, self._add).parse()(self._end)
        self._steps: dict[tuple[frozenset[int], str, str], frozenset[int]] = {}

    def matches(self, name: str) -> bool:
        """Return whether the pattern matches the whole name."""
        states = frozenset([self._begin])
        before = ""
        for character in name:
            states = self._step(states, before, character)
            if not states:
                return False
            before = character
        return self._end in self._closure(states, before, "")

    def _step(self, states: frozenset[int], before: str, character: str) -> frozenset[int]:
        # Of what came before, conditions ask only whether it was there and a word's.
        kind = before and ("w" if before in _WORD else ".")
        found = self._steps.get((states, kind, character))
        if found is None:
            found = frozenset(
                following
                for number in self._closure(states, before, character)
                if (characters := self._states[number].characters) and character in characters
                for following in self._states[number].following
            )
            if len(self._steps) >= CACHED_SETS_MAX:
                self._steps.clear()
            self._steps[states, kind, character] = found
        return found

    def _closure(self, states: Iterable[int], before: str, after: str) -> set[int]:
        """Return the states that can be reached between two characters; empty: none is there."""
        reached, waiting = set(states), list(states)
        while waiting:
            state = self._states[waiting.pop()]
            if state.characters is None and _holds(state.condition, before, after):
                new = [number for number in state.following if number not in reached]
                reached.update(new)
                waiting += new
        return reached

    def _add(self, state: _State) -> int:
        if len(self._states) >= STATES_MAX:
            raise InvalidPattern("too large once its counts are written out")
        self._states.append(state)
        return len(self._states) - 1


def _holds(condition: _At | None, before: str, after: str) -> bool:
    match condition:
        case None:
            return True
        case _At.BEGIN:
            return not before
        case _At.END:
            return not after
        case _:
            is_edge = (before in _WORD) != (after in _WORD)
            return is_edge == (condition is _At.WORD_EDGE)


class _Parser:
    """Turns a pattern into a fragment, by recursive descent."""

    def __init__(self, pattern: str, add: Callable[[_State], int]) -> None:
        self._pattern = pattern
        self._add = add
        self._position = 0
        self._ignores_case = False
        self._depth = 0

    def parse(self) -> _Fragment:
        fragment = self._alternatives()
        if self._position < len(self._pattern):
            raise InvalidPattern("unexpected )")
        return fragment

    # Grammar.

    def _alternatives(self) -> _Fragment:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise InvalidPattern("groups are nested too deep")
        ignored_case = self._ignores_case
        choices = [self._sequence()]
        while self._take("|"):
            choices.append(self._sequence())
        self._ignores_case = ignored_case
        self._depth -= 1
        return choices[0] if len(choices) == 1 else self._choice(choices)

    def _sequence(self) -> _Fragment:
        parts: list[_Fragment] = []
        while self._position < len(self._pattern) and self._pattern[self._position] not in "|)":
            if self._take("\\Q"):
                text = self._until("\\E", is_end_optional=True)
                literals = [self._one_of(self._folded(_just(c))) for c in text]
                # A repetition behind it is the last character's alone.
                parts += [*literals[:-1], *(self._repeated(last) for last in literals[-1:])]
            else:
                parts.append(self._repeated(self._item()))
        return _joined(parts)

    def _repeated(self, item: _Fragment) -> _Fragment:
        if (counts := self._counts()) is None:
            return item
        self._take("?")  # lazy: the same names match
        if self._counts() is not None:
            raise InvalidPattern("invalid nested repetition operator")
        if item is _nothing:
            raise InvalidPattern("missing argument to repetition operator")
        return self._repeat(item, *counts)

    def _counts(self) -> tuple[int, int | None] | None:
        for sign, counts in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._take(sign):
                return counts
        end = self._pattern.find("}", self._position)
        if not self._pattern.startswith("{", self._position) or end < 0:
            return None
        least, comma, most = self._pattern[self._position + 1 : end].partition(",")
        if not _is_number(least) or not (most == "" or _is_number(most)):
            return None  # then the brace stands for itself
        self._position = end + 1
        low = int(least)
        high = low if not comma else int(most) if most else None
        if max(low, high or 0) > REPEAT_MAX or (high is not None and high < low):
            raise InvalidPattern("invalid repeat count")
        return low, high

    def _item(self) -> _Fragment:
        character = self._next()
        match character:
            case "(":
                return self._group()
            case "[":
                characters = self._bracket()
            case ".":
                characters = _ANY
            case "^":
                return self._at(_At.BEGIN)
            case "$":
                return self._at(_At.END)
            case "*" | "+" | "?":
                raise InvalidPattern(f"missing argument to repetition operator: {character}")
            case "\\":
                return self._escaped()
            case _:
                characters = self._folded(_just(character))
        return self._one_of(characters)

    def _group(self) -> _Fragment:
        outer = self._ignores_case
        if self._take("?"):
            if self._take("P<") or self._take("<"):
                name = self._until(">")
                if not name or not all(c in _WORD for c in name):
                    raise InvalidPattern("invalid group name")
            elif not self._takes_flags_of_group():
                return _nothing
        inside = self._alternatives()
        self._ignores_case = outer
        if not self._take(")"):
            raise InvalidPattern("missing closing )")
        # A state of its own, so that repeated empty groups count towards the limit too.
        return lambda following: self._add(_State(following=[inside(following)]))

    def _takes_flags_of_group(self) -> bool:
        """Take flags; return whether they are a group's, else they hold to the end of this one."""
        is_set = True
        while (character := self._next()) not in ":)":
            match character:
                case "-" if is_set:
                    is_set = False
                case "i":
                    self._ignores_case = is_set
                case "m" | "s" | "U":
                    pass  # nothing is known of lines, and laziness does not matter
                case _:
                    raise InvalidPattern("invalid or unsupported Perl syntax")
        return character == ":"

    def _escaped(self) -> _Fragment:
        match self._peek():
            case "A":
                condition = _At.BEGIN
            case "z":
                condition = _At.END
            case "b":
                condition = _At.WORD_EDGE
            case "B":
                condition = _At.NO_WORD_EDGE
            case _:
                return self._one_of(self._folded(self._escaped_set()))
        self._next()
        return self._at(condition)

    def _escaped_set(self) -> _Characters:
        """Return what the escape after a backslash stands for."""
        character = self._next()
        if character.lower() in _CLASSES:
            members = _CLASSES[character.lower()]
            return members if character.islower() else members.negated()
        if character == "x":
            digits = self._until("}") if self._take("{") else self._next() + self._next()
            if not digits or not all(c in string.hexdigits for c in digits):
                raise InvalidPattern("invalid escape sequence")
            number = int(digits, 16)
            if number > 0x10FFFF:
                raise InvalidPattern("invalid escape sequence")
            return _just(chr(number))
        if character in _ESCAPES:
            return _just(_ESCAPES[character])
        if character.isascii() and character.isalnum():
            raise InvalidPattern(f"invalid escape sequence: \\{character}")
        return _just(character)

    def _bracket(self) -> _Characters:
        is_negated = self._take("^")
        parts: list[_Characters] = []
        is_first = True
        while is_first or not self._take("]"):
            is_first = False
            low = self._bracket_item()
            if not self._is_range():
                parts.append(low)
                continue
            self._next()
            high = self._bracket_item()
            if not low.single or not high.single or low.single > high.single:
                raise InvalidPattern("invalid character class range")
            parts.append(_Characters(((low.single, high.single),)))
        found = self._folded(_Characters(parts=tuple(parts)))
        return found.negated() if is_negated else found

    def _bracket_item(self) -> _Characters:
        if self._take("[:"):
            is_negated = self._take("^")
            name = self._until(":]")
            if name not in _POSIX:
                raise InvalidPattern(f"invalid character class range: [:{name}:]")
            return _POSIX[name].negated() if is_negated else _POSIX[name]
        if self._pattern.startswith("\\", self._position):
            self._next()
            return self._escaped_set()
        if self._position >= len(self._pattern):
            raise InvalidPattern("missing closing ]")
        return _just(self._next())

    def _is_range(self) -> bool:
        rest = self._pattern[self._position : self._position + 2]
        return len(rest) == 2 and rest[0] == "-" and rest[1] != "]"

    # Fragments.

    def _one_of(self, characters: _Characters) -> _Fragment:
        return lambda following: self._add(_State(characters=characters, following=[following]))

    def _at(self, condition: _At) -> _Fragment:
        return lambda following: self._add(_State(condition=condition, following=[following]))

    def _choice(self, choices: list[_Fragment]) -> _Fragment:
        return lambda following: self._add(_State(following=[c(following) for c in choices]))

    def _repeat(self, item: _Fragment, low: int, high: int | None) -> _Fragment:
        def any_number(following: int) -> int:
            loop = _State()
            number = self._add(loop)
            loop.following = [item(number), following]
            return number

        def up_to(following: int) -> int:
            begin = following
            for _ in range((high or 0) - low):
                begin = self._add(_State(following=[item(begin), following]))
            return begin

        rest = any_number if high is None else up_to
        return _joined([*[item] * low, rest])

    def _folded(self, characters: _Characters) -> _Characters:
        if not self._ignores_case:
            return characters
        return _Characters(parts=(characters,), ignores_case=True)

    # Characters.

    def _peek(self) -> str:
        return self._pattern[self._position : self._position + 1]

    def _next(self) -> str:
        character = self._peek()
        if not character:
            raise InvalidPattern("it ends too soon")
        self._position += 1
        return character

    def _take(self, text: str) -> bool:
        if not self._pattern.startswith(text, self._position):
            return False
        self._position += len(text)
        return True

    def _until(self, end: str, *, is_end_optional: bool = False) -> str:
        found = self._pattern.find(end, self._position)
        if found < 0:
            if not is_end_optional:
                raise InvalidPattern(f"missing {end}")
            text, self._position = self._pattern[self._position :], len(self._pattern)
            return text
        text, self._position = self._pattern[self._position : found], found + len(end)
        return text


def _nothing(following: int) -> int:
    return following


def _joined(parts: list[_Fragment]) -> _Fragment:
    def join(following: int) -> int:
        for part in reversed(parts):
            following = part(following)
        return following

    return join


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal()
