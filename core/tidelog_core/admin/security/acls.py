"""Creates, finds and deletes ACLs.

Source: Kafka's ``AclControlManager`` with its codes and messages, ``AclBindingFilter``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tidelog_core.admin.batch_changes import commit_each
from tidelog_core.errors import InvalidRequest, PolicyViolation, StoreUnavailable, TidelogError
from tidelog_core.metadata.image.cluster_image import ClusterImage
from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_core.metadata.records import put
from tidelog_core.metadata.security.acls import acl_id, acl_key, stored_acl
from tidelog_core.metadata.store import ANY_VERSION, MetadataStore, Write
from tidelog_core.security.acl import (
    CLUSTER_NAME,
    Acl,
    AclFilter,
    AclOperation,
    AclPermission,
    PatternType,
    ResourceType,
)
from tidelog_core.turns import Turn

NAME_SIZE_MAX = 1000  # characters of a resource's name, of a principal and of a host
ACLS_MAX_SETTING = "authorizer.max.acls"
ACLS_MAX = 100_000  # its default
CHANGES_MAX = 10_000  # ACLs that one request creates or deletes, as in Kafka
COMPARISONS_MAX = 1_000_000  # of ACLs with the filters of one request: about a second


class AclAdmin:
    """Changes ACLs. For the tasks of one event loop."""

    def __init__(
        self,
        store: MetadataStore,
        view: ClusterView,
        *,
        acls_max: Callable[[], int] = lambda: ACLS_MAX,
    ) -> None:
        """The view shows ACLs (``shows_security``). ``acls_max`` bounds those of the cluster."""
        self._store = store
        self._view = view
        self._acls_max = acls_max

    async def create(self, acls: Sequence[Acl]) -> list[TidelogError | None]:
        """Create the ACLs; return the error of each, ``None`` for one that is there now.

        An ACL that is there already is created. Each is created or refused independently of the
        others. Durable on return, and the view's image shows them. Errors are
        ``InvalidRequest``, ``PolicyViolation`` for too many, and those of the store. Nodes that
        create ACLs at the same time may exceed the bound by one request each.
        """
        if len(acls) > CHANGES_MAX:
            problem = InvalidRequest(f"{len(acls)} ACLs in one request, allowed are {CHANGES_MAX}")
            return [problem] * len(acls)
        wanted: dict[Acl, Acl] = {}
        refused: dict[Acl, TidelogError] = {}
        turn = Turn()
        for acl in acls:
            await turn.step()
            try:
                check_acl(acl)
            except InvalidRequest as error:
                refused[acl] = error.with_traceback(None)
            else:
                wanted[acl] = acl
        if wanted:
            try:
                await self._leave_out_excess(wanted, refused)
            except StoreUnavailable as error:
                refused |= dict.fromkeys(wanted, error)
                wanted = {}
        outcomes = await self._change(wanted, is_creation=True)
        return [refused.get(acl, outcomes.get(acl)) for acl in acls]

    async def _leave_out_excess(
        self, wanted: dict[Acl, Acl], refused: dict[Acl, TidelogError]
    ) -> None:
        """Refuse new ACLs that would be too many. Raises ``StoreUnavailable``."""
        index = (await self._view.refresh()).acls.index
        acls_max = self._acls_max()
        room = acls_max - len(index)
        turn = Turn()
        for acl in tuple(wanted):
            await turn.step()
            if acl in index:
                continue
            room -= 1
            if room < 0:
                del wanted[acl]
                refused[acl] = PolicyViolation(
                    f"The cluster has {len(index)} ACLs, {ACLS_MAX_SETTING} allows {acls_max}:"
                    " replace single ACLs by prefixed ones, or by those of groups or roles, or"
                    " raise it"
                )

    async def delete(
        self, filters: Sequence[AclFilter]
    ) -> list[list[tuple[Acl, TidelogError | None]] | TidelogError]:
        """Delete the ACLs that each filter fits; return them, each with its error or ``None``.

        Deleted are those that the newest image shows. Durable on return. A filter's result is an
        error if the store is unavailable, or if the filters fit too many.
        """
        try:
            image = await self._view.refresh()
        except StoreUnavailable as error:
            return [error] * len(filters)
        found: list[list[Acl]] = []
        comparison_count = 0
        turn = Turn()
        for wanted in filters:
            await turn.step()
            comparison_count += len(image.acls.index.candidates(wanted))
            if comparison_count > COMPARISONS_MAX and len(filters) > 1:
                problem = InvalidRequest(
                    f"The {len(filters)} filters would be compared with too many ACLs: delete with"
                    " fewer filters, or with filters that name a resource."
                )
                return [problem] * len(filters)
            found.append(await find_acls(image, wanted))
            if sum(map(len, found)) > CHANGES_MAX:
                problem = InvalidRequest(
                    f"Cannot remove more than {CHANGES_MAX} acls in a single delete operation."
                )
                return [problem] * len(filters)
        outcomes = await self._change(
            {acl: acl for some in found for acl in some}, is_creation=False
        )
        return [[(acl, outcomes[acl]) for acl in some] for some in found]

    async def _change(
        self, wanted: dict[Acl, Acl], *, is_creation: bool
    ) -> dict[Acl, TidelogError | None]:
        decide = _creation if is_creation else _deletion
        return await commit_each(self._store, self._view, wanted, decide)


async def find_acls(image: ClusterImage, acl_filter: AclFilter) -> list[Acl]:
    """Return the ACLs that the filter fits, in their order. Other tasks run in between."""
    found = []
    turn = Turn()
    for acl in image.acls.index.candidates(acl_filter):
        await turn.step()
        if acl_filter.matches(acl):
            found.append(acl)
    return sorted(found)


def check_acl(acl: Acl) -> None:
    """Raise ``InvalidRequest`` for an ACL that cannot be stored."""
    if acl.resource_type is ResourceType.ANY:
        raise InvalidRequest("Invalid resourceType ANY")
    if acl.pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
        raise InvalidRequest(f"Invalid patternType {acl.pattern_type.name}")
    if acl.operation is AclOperation.ANY:
        raise InvalidRequest("Invalid operation ANY")
    if acl.permission is AclPermission.ANY:
        raise InvalidRequest("Invalid permissionType ANY")
    if not acl.name:
        raise InvalidRequest("Resource name should not be empty")
    if acl.resource_type is ResourceType.CLUSTER and acl.name != CLUSTER_NAME:
        raise InvalidRequest(f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}")
    kind, colon, name = acl.principal.partition(":")
    if not (kind and colon and name):
        raise InvalidRequest(
            f"Could not parse principal from `{acl.principal}` (no colon is present separating the"
            " principal type from the principal name)"
        )
    if not acl.host:
        raise InvalidRequest("Host should not be empty")
    for text in (acl.name, acl.principal, acl.host):
        if len(text) > NAME_SIZE_MAX:
            raise InvalidRequest(f"A name of {len(text)} characters, allowed are {NAME_SIZE_MAX}")


def _creation(image: ClusterImage, acl: Acl) -> list[Write]:
    """Return the write of an ACL, none if it is there."""
    record = stored_acl(acl)
    if record.item_id in image.unreadable:
        return [Write(record.item_id, record.to_body(), ANY_VERSION)]
    return [] if record.acl_id in image.acls.records else [put(record)]


def _deletion(image: ClusterImage, acl: Acl) -> list[Write]:
    """Return the write that deletes an ACL, none if it is gone."""
    record = image.acls.records.get(acl_id(acl))
    if record is None:
        return []
    key = acl_key(record.acl_id)
    return [Write(key, None, ANY_VERSION if key in image.unreadable else record.version)]
