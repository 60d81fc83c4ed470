r"""Maps the name in a client's certificate to a user, by Kafka's ``ssl.principal.mapping.rules``.

    RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L, DEFAULT

Rules are separated by commas. The first one whose pattern matches the whole distinguished name
counts: every match in the name is replaced, ``$1`` by the pattern's first group, and ``L`` or
``U`` changes the case of the result. A ``/`` in a pattern or replacement is written ``\/``.
``DEFAULT`` is the distinguished name itself.

Any client can choose its name, so patterns are RE2's: their time grows only linearly with the
name. RE2 has no look-around and no back reference inside a pattern; a rule with one is refused.

Source: KIP-371; ``SslPrincipalMapper`` of Kafka, ``Matcher.appendReplacement`` of Java.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import re2
from tidelog_core.errors import InvalidConfig

RULES_MAX = 100
PATTERN_MEMORY_BYTES_MAX = 1_048_576  # RE2's limit for one pattern
NAME_SIZE_MAX = 65_536  # characters of a mapped name

_SETTING = "ssl.principal.mapping.rules"
# One rule and the comma after it.
_RULE = re.compile(
    r"\s*(?:(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?))\s*(?:,\s*|$)", re.ASCII
)


@dataclass(frozen=True, slots=True)
class _Rule:
    """One rule of the setting."""

    pattern: Any  # compiled
    replacement: tuple[str | int, ...]  # literal texts, and numbers of groups
    case: str  # "L", "U" or ""

    def apply(self, name: str) -> str | None:
        if self.pattern.fullmatch(name) is None:
            return None
        result = self._replace_matches(name)
        if self.case == "L":
            return result.lower()
        return result.upper() if self.case == "U" else result

    def _replace_matches(self, name: str) -> str:
        """Replace each match, even an empty one directly after another, as Java does."""
        parts: list[str] = []
        size = copied = position = 0
        while position <= len(name):
            match = self.pattern.search(name, position)
            if match is None:
                break
            begin, end = match.span()
            new = [name[copied:begin], *(self._text(part, match) for part in self.replacement)]
            parts += new
            size += sum(map(len, new))
            if size > NAME_SIZE_MAX:
                raise PermissionError(f"{_SETTING} makes a name of more than {NAME_SIZE_MAX}")
            copied, position = end, end + (begin == end)
        return "".join([*parts, name[copied:]])

    @staticmethod
    def _text(part: str | int, match: Any) -> str:
        return part if isinstance(part, str) else match.group(part) or ""


class PrincipalMapping:
    """The rules of one listener. ``parse_principal_mapping`` is its only maker."""

    def __init__(self, rules: tuple[_Rule | None, ...]) -> None:
        self._rules = rules  # None: DEFAULT

    def principal_of(self, name: str) -> str | None:
        """Return the user of a distinguished name, ``None`` if no rule applies."""
        for rule in self._rules:
            user = name if rule is None else rule.apply(name)
            if user is not None:
                return user
        return None


def parse_principal_mapping(text: str) -> PrincipalMapping:
    """Return the mapping. Raises ``InvalidConfig`` with the rule that is wrong."""
    rules: list[_Rule | None] = []
    text = text.strip()
    position = 0
    while position < len(text):
        match = _RULE.match(text, position)
        if match is None:
            wanted = "must be DEFAULT or RULE:pattern/replacement/[LU]"
            raise InvalidConfig([f"{_SETTING}: {text[position:]!r} {wanted}"])
        rules.append(None if match[1] else _parse_rule(match[2], match[3], match[4]))
        position = match.end()
    if len(rules) > RULES_MAX:
        raise InvalidConfig([f"{_SETTING} has {len(rules)} rules, allowed are {RULES_MAX}"])
    return PrincipalMapping(tuple(rules))


def _parse_rule(pattern: str, replacement: str, case: str) -> _Rule:
    options = re2.Options()
    options.max_mem = PATTERN_MEMORY_BYTES_MAX
    options.log_errors = False
    try:
        compiled = re2.compile(pattern, options)
    except re2.error as error:
        reason = error.args[0].decode(errors="replace")
        raise InvalidConfig([f"{_SETTING}: pattern {pattern!r} is not RE2's: {reason}"]) from None
    return _Rule(compiled, _parse_replacement(replacement, compiled.groups), case)


def _parse_replacement(text: str, group_count: int) -> tuple[str | int, ...]:
    r"""Return literal texts and group numbers.

    As many digits belong to ``$12`` as make a group that exists; without one it is literal.
    Raises ``InvalidConfig`` where Kafka fails for every client: for ``$1`` if the pattern has no
    group at all, and for a ``$`` without a number.
    """
    parts: list[str | int] = []
    literal, position = "", 0
    while position < len(text):
        character = text[position]
        position += 1
        if character == "\\" and position < len(text):
            literal += text[position]
            position += 1
            continue
        digits = re.match(r"[0-9]+", text[position:]) if character == "$" else None
        group, size = _group(digits[0] if digits else "", group_count)
        if not size and character == "$" and not (digits and group_count):
            wanted = r"$N needs a group (…) in the pattern, a literal $ is written \$"
            raise InvalidConfig([f"{_SETTING}: replacement {text!r}: {wanted}"])
        if not size:
            literal += character
            continue
        parts += [literal, group]
        literal, position = "", position + size
    return (*parts, literal)


def _group(digits: str, group_count: int) -> tuple[int, int]:
    """Return the group and how many of the digits name it, (0, 0) for none."""
    group = size = 0
    for count in range(1, len(digits) + 1):
        if int(digits[:count]) > group_count:
            break
        group, size = int(digits[:count]), count
    return group, size
