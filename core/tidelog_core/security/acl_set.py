"""All ACLs of a cluster, indexed so that a decision looks at few of them.

A set is never changed. Sets that differ in some ACLs share the rest of their index.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain

from tidelog_core.security.acl import ANY_HOST, ANY_NAME, Acl, AclFilter, PatternType, ResourceType
from tidelog_core.turns import Steps, at_once

_Pattern = tuple[ResourceType, PatternType, str]
_ByPrincipal = Mapping[str, tuple[Acl, ...]]
_Sizes = Mapping[ResourceType, tuple[int, ...]]


@dataclass(frozen=True)
class AclSet:
    """ACLs, each once. ``AclSet.of`` makes one."""

    _by_pattern: Mapping[_Pattern, _ByPrincipal] = field(default_factory=dict, repr=False)
    _count: int = 0
    # The lengths of the prefixes of each type in ascending order.
    _prefix_sizes: _Sizes = field(default_factory=dict, repr=False)
    # The hosts that ACLs name, with the number of these ACLs.
    _hosts: Mapping[str, int] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, acls: Iterable[Acl]) -> AclSet:
        """Return the set of these ACLs."""
        return cls().with_changes(acls, ())

    def __iter__(self) -> Iterator[Acl]:
        """Yield the ACLs in no particular order."""
        for by_principal in self._by_pattern.values():
            for acls in by_principal.values():
                yield from acls

    def __len__(self) -> int:
        """Return the number of ACLs."""
        return self._count

    def __contains__(self, acl: object) -> bool:
        """Return whether the set has the ACL."""
        if not isinstance(acl, Acl):
            return False
        return acl in self._found((acl.resource_type, acl.pattern_type, acl.name), acl.principal)

    def with_changes(self, added: Iterable[Acl], removed: Iterable[Acl]) -> AclSet:
        """Return the set without ``removed``, and then with ``added``."""
        return at_once(self.changing(added, removed))

    def changing(self, added: Iterable[Acl], removed: Iterable[Acl]) -> Steps[AclSet]:
        """Return the set as ``with_changes`` does, in steps.

        Takes time for the changes, and to copy the table of pointers.
        """
        changed = yield from self._grouped(added, removed)
        of_changed: dict[_Pattern, dict[str, tuple[Acl, ...]]] = {}
        hosts, count = Counter(self._hosts), self._count
        for (pattern, principal), some in changed.items():
            yield
            before = dict.fromkeys(self._found(pattern, principal))
            if some.keys() == before.keys():
                continue
            count += len(some) - len(before)
            hosts.update(acl.host for acl in some.keys() - before.keys())
            hosts.subtract(acl.host for acl in before.keys() - some.keys())
            by_principal = of_changed.get(pattern)
            if by_principal is None:
                by_principal = of_changed[pattern] = dict(self._by_pattern.get(pattern, ()))
            by_principal.pop(principal, None)
            if some:
                by_principal[principal] = tuple(some)
        if not of_changed:
            return self
        by_pattern = {**self._by_pattern, **of_changed}
        for pattern, by_principal in of_changed.items():
            yield
            if not by_principal:
                del by_pattern[pattern]
        sizes = self._prefix_sizes
        if any(pattern_type is PatternType.PREFIXED for _, pattern_type, _ in of_changed):
            sizes = yield from _sizes_of_prefixes(by_pattern)
        del hosts[ANY_HOST]
        return AclSet(by_pattern, count, sizes, +hosts)

    def _grouped(
        self, added: Iterable[Acl], removed: Iterable[Acl]
    ) -> Steps[dict[tuple[_Pattern, str], dict[Acl, None]]]:
        """Return the ACLs of each pattern and principal that is named, with the changes."""
        changed: dict[tuple[_Pattern, str], dict[Acl, None]] = {}
        changes = chain(((acl, False) for acl in removed), ((acl, True) for acl in added))
        for acl, is_added in changes:
            yield
            pattern = (acl.resource_type, acl.pattern_type, acl.name)
            some = changed.get((pattern, acl.principal))
            if some is None:
                some = dict.fromkeys(self._found(pattern, acl.principal))
                changed[pattern, acl.principal] = some
            if is_added:
                some[acl] = None
            else:
                some.pop(acl, None)
        return changed

    def _found(self, pattern: _Pattern, principal: str) -> tuple[Acl, ...]:
        return self._by_pattern.get(pattern, {}).get(principal, ())

    def names_host(self, host: str) -> bool:
        """Return whether any ACL is for this host, and not for all."""
        return host in self._hosts

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

    def candidates(self, acl_filter: AclFilter) -> Collection[Acl]:
        """Return the ACLs that the filter may fit: all of them unless it names a resource."""
        name = acl_filter.name
        if name is None:
            return self
        found: set[Acl] = set()
        for resource_type in ResourceType:
            if acl_filter.resource_type not in (ResourceType.ANY, resource_type):
                continue
            if acl_filter.pattern_type is PatternType.MATCH:
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


def _sizes_of_prefixes(patterns: Iterable[_Pattern]) -> Steps[_Sizes]:
    sizes: dict[ResourceType, set[int]] = {}
    for resource_type, pattern_type, name in patterns:
        yield
        if pattern_type is PatternType.PREFIXED:
            sizes.setdefault(resource_type, set()).add(len(name))
    return {resource_type: tuple(sorted(some)) for resource_type, some in sizes.items()}
