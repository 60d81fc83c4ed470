"""Names of subjects and contexts.

A subject of the context ``.staging`` is named ``:.staging:orders-value``; the name of a subject in
the default context, ``.``, has no prefix. ``:.staging:`` alone names the context. Subjects of all
contexts begin with ``:*:``. Source: Confluent's ``QualifiedSubject``, with one tenant.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass

from tidelog_core.schemas.model import SUBJECT_BYTES_MAX

DEFAULT_CONTEXT = "."
WILDCARD = "*"
EVERY_CONTEXT = ":*:"
GLOBAL_CONTEXT = ".__GLOBAL"  # has settings only: those of contexts without their own
_RESERVED = frozenset({"__GLOBAL", "__EMPTY"})
_PREFIX = ":."


@dataclass(frozen=True, slots=True, order=True)
class SubjectName:
    """A subject and its context. ``subject`` is empty in the name of a context."""

    context: str
    subject: str

    @classmethod
    def parse(cls, text: str) -> SubjectName:
        """Return the name that a client wrote."""
        if text.startswith(_PREFIX):
            context, _, subject = text[1:].partition(":")
            return cls(context, subject)
        if text.startswith(EVERY_CONTEXT):
            return cls(WILDCARD, text[len(EVERY_CONTEXT) :])
        return cls(DEFAULT_CONTEXT, text)

    @property
    def text(self) -> str:
        """The name as clients write it."""
        return self.context_prefix + self.subject

    @property
    def context_prefix(self) -> str:
        """The prefix of all names in the context."""
        return "" if self.context == DEFAULT_CONTEXT else f":{self.context}:"

    @property
    def is_in_default_context(self) -> bool:
        """Whether the name has no context of its own."""
        return self.context == DEFAULT_CONTEXT

    @property
    def names_default_context(self) -> bool:
        """Whether it is the default context itself, and so everything without settings."""
        return self.is_in_default_context and not self.subject

    def in_context(self, context: str) -> SubjectName:
        """Return the subject of this name in another context."""
        return SubjectName(context, self.subject)

    def reference(self, subject: str) -> SubjectName:
        """Return the name of a subject that a schema of this one refers to."""
        found = SubjectName.parse(subject)
        return found.in_context(self.context) if found.is_in_default_context else found


def is_valid_subject(text: str, *, for_settings: bool = False) -> bool:
    """Return whether schemas, or settings, may have this name."""
    if len(text.encode(errors="replace")) > SUBJECT_BYTES_MAX:
        return False
    if any(unicodedata.category(character) in ("Cc", "Cs") for character in text):
        return False
    name = SubjectName.parse(text)
    if name.subject in _RESERVED or name.context == WILDCARD:
        return False
    if for_settings:
        return True
    return bool(name.subject) and name.context != GLOBAL_CONTEXT
