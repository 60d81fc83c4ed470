"""Which topics the patterns of one group match, kept up as topics come and go."""

from __future__ import annotations

from collections.abc import Collection

from tidelog_node.coordinator.topic_pattern import TopicPattern


class PatternMatches:
    """The patterns that members subscribe to. A name is matched to a pattern once."""

    def __init__(self) -> None:
        self.by_pattern: dict[str, tuple[str, ...]] = {}  # the names that match, sorted
        self._compiled: dict[str, TopicPattern] = {}
        self._known: dict[str, dict[str, bool]] = {}  # by pattern and name

    def compile(self, pattern: str) -> TopicPattern:
        """Return the pattern, ready to be matched. Raises ``InvalidPattern``."""
        compiled = self._compiled.get(pattern)
        if compiled is None:
            compiled = self._compiled[pattern] = TopicPattern(pattern)
        return compiled

    def update(self, patterns: Collection[str], names: Collection[str]) -> bool:
        """Match the patterns to the names; return whether others match than before."""
        for gone in (self._known.keys() | self._compiled.keys()) - set(patterns):
            self._known.pop(gone, None)
            self._compiled.pop(gone, None)
        found: dict[str, tuple[str, ...]] = {}
        for pattern in patterns:
            compiled, known = self.compile(pattern), self._known.get(pattern, {})
            matched = {n: known[n] if n in known else compiled.matches(n) for n in names}
            self._known[pattern] = matched
            found[pattern] = tuple(sorted(name for name, matches in matched.items() if matches))
        has_changed = found != self.by_pattern
        self.by_pattern = found
        return has_changed
