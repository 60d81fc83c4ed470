"""The topics that match groups' patterns, computed once for all groups of a node.

RE2 takes up to a millisecond for a hostile name, so names are matched in the turns of a
``RequestTurn``: the loop is held no longer than for ``ITEMS_PER_LOOK`` names after a turn has
ended. A pattern that is new to the node is matched to all topics, and from then on to those that
come. What one image adds to the one before is noted once, not once a group.

A heartbeat waits while its group's patterns are matched, and other things happen meanwhile: images
come, other members of the group are heard, the group is stored or unloaded. That is safe because
whether a name matches never changes. What was found for an older image is true in a newer one; a
group takes ids and counts of the topics, and whether they are there at all, from the image of its
event. Names that came too late for an event are found by the next one (``is_current``).

Not in a thread: RE2's binding keeps the interpreter while it matches, so the loop would wait for
it after each of its system calls, and the requests that wait would not take turns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from weakref import WeakValueDictionary

from tidelog_node.groups.consumer.topic_pattern import InvalidPattern, TopicPattern
from tidelog_node.groups.subscribed_topics import TopicsByName
from tidelog_node.request_turns import RequestTurn

# Topics that came or went and are kept for patterns that have not been matched to them yet; for a
# pattern that is further behind, all topics are matched again. No fewer than there are topics.
CHANGES_KEPT_MIN = 1_000


class PatternMatches:
    """The topics that match one pattern. All groups that subscribe to it share this."""

    def __init__(self, pattern: str, matcher: PatternMatcher) -> None:
        self.pattern = pattern
        self.names: set[str] = set()  # of topics that are there, or were there not long ago
        self.position = -1  # changes of topics that the names take in; -1: nothing is matched yet
        self.matching = asyncio.Lock()
        self._matcher = matcher

    @property
    def is_current(self) -> bool:
        """Whether all topics of the newest image have been matched."""
        return self.position == self._matcher.end


class PatternMatcher:
    """Matches patterns to the cluster's topics. For the tasks of one event loop."""

    def __init__(self, topics: TopicsByName) -> None:
        self.end = 0  # topics that have come or gone so far
        self.topics = topics  # of the newest image
        self._changes: list[str] = []  # the last of them
        # A pattern is forgotten with the last group that subscribes to it.
        self._patterns: WeakValueDictionary[str, PatternMatches] = WeakValueDictionary()

    def take_topics(self, topics: TopicsByName, changed: Collection[str]) -> None:
        """Go on with the topics of a new image; ``changed`` names all that are not as they were."""
        before, self.topics = self.topics, topics
        news = [name for name in changed if (name in before) != (name in topics)]
        self._changes += news
        self.end += len(news)
        kept_count = max(len(topics), CHANGES_KEPT_MIN)
        if not self._patterns:
            self._changes.clear()
        elif len(self._changes) > 2 * kept_count:
            del self._changes[:-kept_count]

    async def match(self, patterns: Iterable[str]) -> Mapping[str, PatternMatches]:
        """Return what each pattern matches, of all topics that were there at the call at least."""
        turn = RequestTurn()
        matched = {}
        for pattern in patterns:
            one = self._patterns.get(pattern)
            if one is None:
                one = self._patterns[pattern] = PatternMatches(pattern, self)
            matched[pattern] = one
            if not one.is_current:
                async with one.matching:
                    await self._catch_up(one, turn)
                await turn.step()
        return matched

    async def _catch_up(self, one: PatternMatches, turn: RequestTurn) -> None:
        try:
            pattern = TopicPattern(one.pattern)
        except InvalidPattern:
            # A stored one, of a node that allowed larger patterns: its members go on. Or that of a
            # heartbeat, which its group refuses.
            one.position = self.end
            return
        if one.position < self.end - len(self._changes):
            # The names of before are in use until all of them have been found again.
            position = self.end
            names = {name async for name in turn.each(self.topics) if pattern.matches(name)}
            one.names, one.position = names, position
        async for _ in turn.each(range(one.position, self.end)):
            index = one.position - self.end + len(self._changes)
            if index < 0:
                return  # Too many have come and gone since the line before.
            name = self._changes[index]
            one.position += 1
            if name in self.topics and pattern.matches(name):
                one.names.add(name)
            else:
                one.names.discard(name)
