"""Which topics the patterns of one group match, kept up as topics come and go."""

from __future__ import annotations

from collections.abc import Collection

from tidelog_node.coordinator.topic_pattern import InvalidPattern, TopicPattern


class PatternMatches:
    """The patterns that members subscribe to. A name is matched to a pattern once."""

    def __init__(self) -> None:
        self.by_pattern: dict[str, tuple[str, ...]] = {}  # the names that match, sorted
        self._seen_patterns: frozenset[str] = frozenset()  # all of them matched to ...
        self._seen_names: Collection[str] = ()  # ... all of these

    def update(self, patterns: Collection[str], names: Collection[str]) -> None:
        """Match the patterns to the names.

        The names are kept as they are given, and not at all without a pattern: groups are many,
        and share the topics of an image, which nobody changes.
        """
        if not patterns:
            self.by_pattern, self._seen_patterns, self._seen_names = {}, frozenset(), ()
            return
        added = [name for name in names if name not in self._seen_names]
        found: dict[str, tuple[str, ...]] = {}
        for pattern in patterns:
            if pattern in self._seen_patterns:
                kept = [name for name in self.by_pattern[pattern] if name in names]
                matched = kept + _matching(pattern, added)
            else:
                matched = _matching(pattern, names)
            found[pattern] = tuple(sorted(matched))
        self.by_pattern = found
        self._seen_patterns, self._seen_names = frozenset(patterns), names


def _matching(pattern: str, names: Collection[str]) -> list[str]:
    if not names:
        return []
    try:
        compiled = TopicPattern(pattern)
    except InvalidPattern:
        # The group was stored by a node that allowed larger patterns. Its members go on.
        return []
    return [name for name in names if compiled.matches(name)]
