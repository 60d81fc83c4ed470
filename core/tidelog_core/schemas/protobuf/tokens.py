"""The tokens of .proto files. Source: the language specifications of proto2 and proto3."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from tidelog_core.schemas.parsed_schema import InvalidSchema

_TOKEN = re.compile(
    r"""(?P<space>\s+|//[^\n]*|/\*.*?\*/)
    |(?P<name>\.?[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*)
    |(?P<number>(?:0[xX][0-9a-fA-F]+|[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?|\.[0-9]+)[fF]?)
    |(?P<text>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
    |(?P<mark>[{}\[\]()<>;,=:+\-/.])""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(r"\\(?:([0-7]{1,3})|[xX]([0-9a-fA-F]{1,2})|(.))", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}


class Token(NamedTuple):
    """A token, and where it is."""

    kind: str  # name, number, text or mark; end
    text: str
    position: int


class Tokens:
    """Reads the tokens of a text one after the other."""

    def __init__(self, text: str) -> None:
        """Raises ``InvalidSchema`` for a character that begins no token."""
        self._text = text
        self._tokens = _split(text)
        self._at = 0

    @property
    def next(self) -> Token:
        """The next token."""
        return self._tokens[self._at]

    def take(self) -> Token:
        """Return the next token and go on behind it."""
        token = self._tokens[self._at]
        if token.kind != "end":
            self._at += 1
        return token

    def has(self, text: str) -> bool:
        """Return whether the next token is this one; go on behind it if so."""
        token = self.next
        if token.text != text or token.kind in ("text", "end"):
            return False
        self._at += 1
        return True

    def require(self, text: str) -> None:
        """Go on behind this token. Raises ``InvalidSchema`` if the next is another."""
        if not self.has(text):
            raise self.wrong(f"{text!r}")

    def name(self) -> str:
        """Return the next token, which is a name. Raises ``InvalidSchema``."""
        token = self.take()
        if token.kind != "name":
            raise self.wrong("a name", token)
        return token.text

    def number(self) -> int:
        """Return the next token, which is a whole number. Raises ``InvalidSchema``."""
        sign = -1 if self.has("-") else 1
        token = self.take()
        try:
            return sign * parse_int(token.text)
        except ValueError:
            raise self.wrong("a whole number", token) from None

    def text(self) -> str:
        """Return the text in one or more strings. Raises ``InvalidSchema``."""
        if self.next.kind != "text":
            raise self.wrong("a text in quotes")
        parts = []
        while self.next.kind == "text":
            parts.append(unescape(self.take().text[1:-1]))
        return "".join(parts)

    def block(self) -> str:
        """Return the text up to the bracket that closes one that was just read."""
        start, depth = self.next.position, 1
        while depth:
            token = self.take()
            if token.kind == "end":
                raise self.wrong("'}'", token)
            if token.kind == "mark":
                depth += (token.text in "{<") - (token.text in "}>")
        return self._text[start : token.position].strip()

    def wrong(self, wanted: str, token: Token | None = None) -> InvalidSchema:
        """Return the error at a token, or at the next."""
        found = token or self.next
        line = self._text.count("\n", 0, found.position) + 1
        shown = "the end" if found.kind == "end" else repr(found.text[:50])
        return InvalidSchema(f"line {line}: {wanted} is expected, not {shown}")


def parse_int(text: str) -> int:
    """Return a number as protoc reads it: 0x is hex, 0 octal. Raises ``ValueError``."""
    if len(text) > 30:
        raise ValueError("too long")
    if text[:2].lower() == "0x":
        return int(text, 16)
    is_octal = len(text) > 1 and text[0] == "0"
    return int(text, 8 if is_octal else 10)


def unescape(text: str) -> str:
    """Return a string's text without its escapes."""

    def plain(match: re.Match[str]) -> str:
        octal, hexadecimal, letter = match.groups()
        if octal:
            return chr(int(octal, 8))
        if hexadecimal:
            return chr(int(hexadecimal, 16))
        return _ESCAPED.get(letter, letter)

    return _ESCAPE.sub(plain, text)


def _split(text: str) -> Sequence[Token]:
    tokens, at = [], 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            line = text.count("\n", 0, at) + 1
            raise InvalidSchema(f"line {line}: {text[at : at + 20]!r} is no part of a .proto file")
        kind = match.lastgroup or ""
        if kind != "space":
            tokens.append(Token(kind, match[0], at))
        at = match.end()
    tokens.append(Token("end", "", len(text)))
    return tokens
