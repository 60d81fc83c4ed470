"""Which topics the patterns of one group match, kept up as topics come and go."""

from __future__ import annotations

from collections.abc import Collection

from tidelog_node.coordinator.topic_pattern import InvalidPattern, TopicPattern


class PatternMatches:
    """The patterns that members subscribe to. A name is matched to a pattern once."""

    def __init__(self) -> None:
        self.by_pattern: dict[str, tuple[str, ...]] = {}  # the names that match, sorted
        self._seen_patterns: frozenset[str] = frozenset()  # all of them matched to ...
        self._seen_names: frozenset[str] = frozenset()  # ... all of these

    def update(self, patterns: Collection[str], names: Collection[str]) -> None:
        """Match the patterns to the names."""
        known = frozenset(names)
        added = known - self._seen_names
        found: dict[str, tuple[str, ...]] = {}
        for pattern in patterns:
            if pattern in self._seen_patterns:
                kept = known.intersection(self.by_pattern[pattern])
                matched = kept.union(_matching(pattern, added))
            else:
                matched = _matching(pattern, known)
            found[pattern] = tuple(sorted(matched))
        self.by_pattern = found
        self._seen_patterns, self._seen_names = frozenset(patterns), known


def _matching(pattern: str, names: frozenset[str]) -> frozenset[str]:
    if not names:
        return names
    try:
        compiled = TopicPattern(pattern)
    except InvalidPattern:
        # The group was stored by a node that allowed larger patterns. Its members go on.
        return frozenset()
    return frozenset(name for name in names if compiled.matches(name))
