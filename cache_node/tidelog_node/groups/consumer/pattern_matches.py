"""The topics that match groups' patterns, computed once for all groups of a node.

RE2 takes up to a millisecond for a hostile name, so names are matched in the turns of a
``RequestTurn``: after the end of a turn the loop is held for ``ITEMS_PER_CHECK`` names at most. A
pattern that is new to the node is matched to all topics, and then to each new topic. The difference
between two images is computed once, not per group.

While a heartbeat waits for its group's patterns, images may arrive, other members may send
heartbeats, and the group may be stored or unloaded. That is safe because a name always matches or
never does: a result for an older image is true in a newer one. A group takes the topics' ids,
counts and existence from the image of its event. The next event finds names that came too late
(``is_current``).

What a viewer sees of the matches is kept beside them, for all groups with members of the same
rights. A change of rights makes other viewers, and matches no pattern again.

This is not done in a thread: RE2's binding holds the interpreter while it matches, so the loop
would wait for it after each of its system calls, and the waiting requests would not take turns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from weakref import WeakValueDictionary

from tidelog_node.fairness.request_turns import RequestTurn
from tidelog_node.groups.consumer.pattern_view import PatternView, Viewer
from tidelog_node.groups.consumer.topic_pattern import InvalidPattern, TopicPattern
from tidelog_node.groups.subscribed_topics import TopicsByName

# Created or deleted topics that are kept for patterns not matched to them yet. A pattern that is
# further behind is matched to all topics again. At least as many are kept as there are topics.
CHANGES_KEPT_MIN = 1_000


class PatternMatches:
    """The topics that match one pattern, shared by all groups that subscribe to it."""

    def __init__(self, pattern: str, matcher: PatternMatcher) -> None:
        self.pattern = pattern
        self.names: set[str] = set()  # of existing topics, perhaps of recently deleted ones
        self.position = -1  # changes of topics included in ``names``; -1: nothing is matched yet
        self.matching = asyncio.Lock()
        self._matcher = matcher

    @property
    def is_current(self) -> bool:
        """Whether all topics of the newest image have been matched."""
        return self.position == self._matcher.end


class SeenMatches:
    """The topics that match one pattern and that a viewer sees."""

    def __init__(self, matches: PatternMatches, viewer: Viewer) -> None:
        self.names: set[str] = set()
        self.matching = asyncio.Lock()
        self._matches = matches
        self._viewer = viewer
        self._position = -1  # of the matches that were looked at
        self._decided: dict[str, bool] = {}

    @property
    def is_current(self) -> bool:
        """Whether all topics of the newest image have been matched and looked at."""
        return self._matches.is_current and self._position == self._matches.position

    async def look(self, turn: RequestTurn) -> None:
        """Decide about the matches that have come since the last time."""
        position, matches = self._matches.position, tuple(self._matches.names)
        before, decided = self._decided, dict[str, bool]()
        async for name in turn.each(matches):
            known = before.get(name)
            decided[name] = self._viewer.sees(name) if known is None else known
        self.names = {name for name, is_seen in decided.items() if is_seen}
        self._position, self._decided = position, decided


Matches = PatternMatches | SeenMatches


class PatternMatcher:
    """Matches patterns to the cluster's topics. For the tasks of one event loop."""

    def __init__(self, topics: TopicsByName) -> None:
        self.end = 0  # topics created or deleted so far
        self.topics = topics  # of the newest image
        self._changes: list[str] = []  # the latest of them
        # A pattern is forgotten with the last group that subscribes to it.
        self._patterns: WeakValueDictionary[str, PatternMatches] = WeakValueDictionary()
        self._seen: WeakValueDictionary[PatternView, SeenMatches] = WeakValueDictionary()

    def take_topics(self, topics: TopicsByName, changed: Collection[str]) -> None:
        """Take the topics of a new image; ``changed`` has all names whose topic differs."""
        before, self.topics = self.topics, topics
        news = [name for name in changed if (name in before) != (name in topics)]
        self._changes += news
        self.end += len(news)
        kept_count = max(len(topics), CHANGES_KEPT_MIN)
        if not self._patterns:
            self._changes.clear()
        elif len(self._changes) > 2 * kept_count:
            del self._changes[:-kept_count]

    async def match(self, views: Iterable[PatternView]) -> Mapping[PatternView, Matches]:
        """Return each view's matches, at least among the topics at the time of the call."""
        turn = RequestTurn()
        matched: dict[PatternView, Matches] = {}
        for view in views:
            one = self._patterns.get(view.pattern)
            if one is None:
                one = self._patterns[view.pattern] = PatternMatches(view.pattern, self)
            if not one.is_current:
                async with one.matching:
                    await self._catch_up(one, turn)
                await turn.step()
            matched[view] = one
            if view.viewer is not None:
                matched[view] = await self._seen_by(view, view.viewer, one, turn)
        return matched

    async def _seen_by(
        self, view: PatternView, viewer: Viewer, matches: PatternMatches, turn: RequestTurn
    ) -> SeenMatches:
        seen = self._seen.get(view)
        if seen is None:
            seen = self._seen[view] = SeenMatches(matches, viewer)
        if not seen.is_current:
            async with seen.matching:
                if not seen.is_current:
                    await seen.look(turn)
        return seen

    async def _catch_up(self, one: PatternMatches, turn: RequestTurn) -> None:
        try:
            pattern = TopicPattern(one.pattern)
        except InvalidPattern:
            # A stored one from a node that allowed larger patterns: its members stay. Or one in a
            # heartbeat, which its group refuses.
            one.position = self.end
            return
        if one.position < self.end - len(self._changes):
            # The old names stay in use until all names are matched.
            position = self.end
            names = {name async for name in turn.each(self.topics) if pattern.matches(name)}
            one.names, one.position = names, position
        async for _ in turn.each(range(one.position, self.end)):
            index = one.position - self.end + len(self._changes)
            if index < 0:
                return  # Too many topics have changed since the last turn.
            name = self._changes[index]
            one.position += 1
            if name in self.topics and pattern.matches(name):
                one.names.add(name)
            else:
                one.names.discard(name)
