"""All ACLs of a cluster, indexed so that a decision looks at few of them.

A set is never changed. Sets that differ in some ACLs share the rest of their index.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from tidelog_core.security.acl import ANY_NAME, Acl, AclFilter, PatternType, ResourceType

_Pattern = tuple[ResourceType, PatternType, str]
_ByPrincipal = Mapping[str, tuple[Acl, ...]]


@dataclass(frozen=True)
class AclSet:
    """ACLs, each once. ``AclSet.of`` makes one."""

    acls: frozenset[Acl] = frozenset()
    _by_pattern: Mapping[_Pattern, _ByPrincipal] = field(default_factory=dict, repr=False)
    # The lengths of the prefixes of each type in ascending order.
    _prefix_sizes: Mapping[ResourceType, tuple[int, ...]] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, acls: Iterable[Acl]) -> AclSet:
        """Return the set of these ACLs."""
        return cls().with_changes(acls, ())

    def with_changes(self, added: Iterable[Acl], removed: Iterable[Acl]) -> AclSet:
        """Return the set without ``removed``, and then with ``added``.

        Takes time for the changes, and to copy two tables of pointers.
        """
        given = frozenset(added)
        new = given - self.acls
        gone = (frozenset(removed) & self.acls) - given
        if not new and not gone:
            return self
        of_changed: dict[_Pattern, dict[str, list[Acl]]] = {
            (acl.resource_type, acl.pattern_type, acl.name): {} for acl in (*new, *gone)
        }
        kept = (
            acl
            for pattern in of_changed
            for some in self._by_pattern.get(pattern, {}).values()
            for acl in some
            if acl not in gone
        )
        for acl in (*kept, *new):
            pattern = (acl.resource_type, acl.pattern_type, acl.name)
            of_changed[pattern].setdefault(acl.principal, []).append(acl)
        by_pattern = dict(self._by_pattern)
        for pattern, by_principal in of_changed.items():
            by_pattern.pop(pattern, None)
            if by_principal:
                by_pattern[pattern] = {who: tuple(some) for who, some in by_principal.items()}
        sizes = self._prefix_sizes
        if any(pattern_type is PatternType.PREFIXED for _, pattern_type, _ in of_changed):
            sizes = _sizes_of_prefixes(by_pattern)
        return AclSet((self.acls - gone) | new, by_pattern, sizes)

    def matching(self, resource_type: ResourceType, name: str) -> Iterator[_ByPrincipal]:
        """Yield the ACLs of each pattern that applies to the resource, by their principals.

        Takes one look-up for the name, one for all names and one for each length of a prefix.
        """
        patterns = self._by_pattern
        for pattern in (
            (resource_type, PatternType.LITERAL, name),
            (resource_type, PatternType.LITERAL, ANY_NAME),
        ):
            found = patterns.get(pattern)
            if found is not None:
                yield found
        sizes = self._prefix_sizes.get(resource_type, ())
        for size in sizes[: bisect_right(sizes, len(name))]:
            found = patterns.get((resource_type, PatternType.PREFIXED, name[:size]))
            if found is not None:
                yield found

    def candidates(self, wanted: AclFilter) -> Collection[Acl]:
        """Return the ACLs that the filter may fit: all of them unless it names a resource."""
        name = wanted.name
        if name is None:
            return self.acls
        found: set[Acl] = set()
        for resource_type in ResourceType:
            if wanted.resource_type not in (ResourceType.ANY, resource_type):
                continue
            if wanted.pattern_type is PatternType.MATCH:
                some = self.matching(resource_type, name)
            else:
                of_name = (
                    self._by_pattern.get((resource_type, pattern_type, name))
                    for pattern_type in (PatternType.LITERAL, PatternType.PREFIXED)
                )
                some = (one for one in of_name if one is not None)
            for by_principal in some:
                for acls in by_principal.values():
                    found.update(acls)
        return found

    def of_type(
        self, resource_type: ResourceType
    ) -> Iterator[tuple[PatternType, str, _ByPrincipal]]:
        """Yield the ACLs of each pattern of the type, by their principals."""
        for (kind, pattern_type, name), found in self._by_pattern.items():
            if kind is resource_type:
                yield pattern_type, name, found


def _sizes_of_prefixes(patterns: Iterable[_Pattern]) -> dict[ResourceType, tuple[int, ...]]:
    sizes: dict[ResourceType, set[int]] = {}
    for resource_type, pattern_type, name in patterns:
        if pattern_type is PatternType.PREFIXED:
            sizes.setdefault(resource_type, set()).add(len(name))
    return {resource_type: tuple(sorted(some)) for resource_type, some in sizes.items()}
