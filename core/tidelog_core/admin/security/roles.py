"""Creates, changes and deletes roles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tidelog_core.admin.batch_changes import commit_each
from tidelog_core.errors import (
    DuplicateResource,
    InvalidRequest,
    PolicyViolation,
    ResourceNotFound,
    StoreUnavailable,
    TidelogError,
)
from tidelog_core.metadata.image.cluster_image import ClusterImage
from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_core.metadata.records import put
from tidelog_core.metadata.security.roles import Role, role_key
from tidelog_core.metadata.store import ABSENT, ANY_VERSION, MetadataStore, Write
from tidelog_core.role_messages import CHANGE, CREATE, DELETE
from tidelog_core.security.roles import (
    MEMBERS_MAX,
    check_member,
    check_members,
    check_role_name,
)
from tidelog_core.turns import Turn

ROLES_MAX = 1_000  # of a cluster
ROLE_MEMBERS_MAX = 100_000  # of all roles of a cluster together
CHANGES_MAX = 10_000  # roles that one request names
MEMBER_CHANGES_MAX = 2 * MEMBERS_MAX  # of one role, in one request


@dataclass(frozen=True, slots=True)
class RoleChange:
    """One change of a role; ``operation`` is that of AlterRoles."""

    name: str
    operation: int
    added: Sequence[str] = ()
    removed: Sequence[str] = ()


class RoleAdmin:
    """Changes roles. For the tasks of one event loop."""

    def __init__(self, store: MetadataStore, view: ClusterView) -> None:
        """The view shows roles (``shows_security``)."""
        self._store = store
        self._view = view

    async def alter(self, changes: Sequence[RoleChange]) -> dict[str, TidelogError | None]:
        """Make the changes; return the error of each role, ``None`` for one that was changed.

        Each role is changed wholly or not at all, independently of the others. One that is named
        twice is not changed. Durable on return, and the view's image shows them. Errors are
        ``InvalidRequest``, ``DuplicateResource`` for a role that is there already or named twice,
        ``ResourceNotFound``, ``PolicyViolation`` for too many roles, and those of the store.
        """
        if len(changes) > CHANGES_MAX:
            problem = InvalidRequest(
                f"{len(changes)} roles in one request, allowed are {CHANGES_MAX}"
            )
            return dict.fromkeys((one.name for one in changes), problem)
        wanted: dict[str, RoleChange] = {}
        refused: dict[str, TidelogError] = {}
        turn = Turn()
        for one in changes:
            await turn.step()
            try:
                if one.name in wanted or one.name in refused:
                    wanted.pop(one.name, None)
                    raise DuplicateResource(f"The role {one.name} is in the request twice")
                await _check(one, turn)
                wanted[one.name] = one
            except (InvalidRequest, DuplicateResource) as error:
                refused[one.name] = error.with_traceback(None)  # a traceback holds the request
        try:
            refused |= self._without_room(wanted, await self._view.refresh())
        except StoreUnavailable as error:
            return {**dict.fromkeys(wanted, error), **refused}
        wanted = {name: one for name, one in wanted.items() if name not in refused}
        done = await commit_each(self._store, self._view, wanted, _decide)
        return {**done, **refused}

    def _without_room(
        self, wanted: Mapping[str, RoleChange], image: ClusterImage
    ) -> dict[str, TidelogError]:
        """Return the errors of changes by which roles or members would be too many."""
        known = image.roles.records
        room = ROLES_MAX - len(known)
        room_for_members = ROLE_MEMBERS_MAX - image.roles.index.member_count
        refused: dict[str, TidelogError] = {}
        for name, one in wanted.items():
            room -= one.operation == CREATE and name not in known
            room_for_members -= len(one.added)
            if room < 0:
                refused[name] = PolicyViolation(
                    f"There would be more than {ROLES_MAX} roles: delete roles that are not needed"
                )
            elif room_for_members < 0 and one.added:
                refused[name] = PolicyViolation(
                    f"All roles would have more than {ROLE_MEMBERS_MAX} members together: make"
                    " groups their members"
                )
        return refused


async def _check(one: RoleChange, turn: Turn) -> None:
    """Raise ``InvalidRequest`` for a change that no role can have."""
    check_role_name(one.name)
    if one.operation not in (CREATE, DELETE, CHANGE):
        raise InvalidRequest(
            f"Unknown operation {one.operation}: {CREATE} creates a role, {DELETE} deletes one,"
            f" {CHANGE} changes its members"
        )
    if len(one.added) + len(one.removed) > MEMBER_CHANGES_MAX:
        raise InvalidRequest(
            f"{len(one.added) + len(one.removed)} members to add and to remove, allowed are"
            f" {MEMBER_CHANGES_MAX} in one request"
        )
    if one.operation == DELETE and (one.added or one.removed):
        raise InvalidRequest("A role that is deleted has no members to add or to remove")
    for principal in one.added:
        await turn.step()
        check_member(principal)
    both = set(one.added) & set(one.removed)
    if both:
        raise InvalidRequest(f"{min(both)} is to be added and removed")


def _decide(image: ClusterImage, one: RoleChange) -> list[Write]:
    """Return the write that changes the role, none if it is so.

    Raises ``DuplicateResource``, ``ResourceNotFound`` and ``InvalidRequest``.
    """
    key = role_key(one.name)
    record = image.roles.records.get(one.name)
    is_damaged = key in image.unreadable
    version = ABSENT if record is None else record.version
    if is_damaged:
        version = ANY_VERSION
    if one.operation == DELETE:
        if record is None and not is_damaged:
            raise _missing(one.name)
        return [Write(key, None, version)]
    if one.operation == CREATE and record is not None and not is_damaged:
        raise DuplicateResource(f"The role {one.name} is there already")
    if one.operation == CHANGE and (record is None or is_damaged):
        if is_damaged:
            raise InvalidRequest(
                f"The item of the role {one.name} cannot be read: delete the role and create it"
                " again"
            )
        raise _missing(one.name)
    before = () if record is None or is_damaged else record.members
    members = tuple(sorted({*before, *one.added} - {*one.removed}))
    if one.operation == CHANGE and members == before:
        return []
    check_members(members)
    return [put(Role(name=one.name, members=members, version=version))]


def _missing(name: str) -> ResourceNotFound:
    return ResourceNotFound(f"There is no role {name}")


async def find_roles(
    image: ClusterImage, names: Sequence[str] | None, members: Sequence[str] | None
) -> list[Role]:
    """Return the roles with one of the names and one of the members; ``None`` fits all.

    Other tasks run in between.
    """
    records, turn = image.roles.records, Turn()
    found: set[str] = set()
    for name in records if names is None else names:
        await turn.step()
        if name in records:
            found.add(name)
    if members is not None:
        having: set[str] = set()
        for member in members:
            await turn.step()
            having.update(image.roles.index.roles_of(member))
        found &= having
    return [records[name] for name in sorted(found)]
