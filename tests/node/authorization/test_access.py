"""Kept decisions are those that the authorizer would make now, and their memory is bounded."""

from __future__ import annotations

import dataclasses
from typing import cast
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidelog_core.errors import UnknownTopicId
from tidelog_core.metadata.image.cluster_image import ClusterImage
from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_core.metadata.security.acls import Acls
from tidelog_core.metadata.security.roles import Role, Roles
from tidelog_core.model import Principal
from tidelog_core.security.acl import Acl, AclOperation, AclPermission, ResourceType
from tidelog_core.security.acl_set import AclSet
from tidelog_core.security.authorization import Authorizer, Client
from tidelog_node.authorization import access as access_module
from tidelog_node.authorization.access import Access
from tidelog_node.requests.session import Session

from tests.support.random_acls import HOSTS, NAMES, acl, acls_drawn

ID = UUID(int=7)
USERS = ("alice", "bob")


class View:
    """A view whose image a test replaces."""

    def __init__(self, *acls: Acl) -> None:
        self.image = ClusterImage()
        self.change(*acls)

    def change(self, *acls: Acl) -> None:
        index = AclSet().with_changes(acls, ())
        self.image = ClusterImage(acls=Acls(index=index), topic_names={ID: "a"})


def session_of(user: str = "alice", host: str = HOSTS[0]) -> Session:
    session = Session(host, 1, "PLAINTEXT")
    session.become(Principal("User", user))
    return session


@given(
    st.lists(st.lists(acls_drawn, max_size=6), min_size=2, max_size=4),
    st.sampled_from(list(ResourceType)),
    st.sampled_from([one for one in AclOperation if one > AclOperation.ALL]),
)
def test_a_kept_decision_is_that_of_the_newest_acls(
    changes: list[list[Acl]], resource_type: ResourceType, operation: AclOperation
) -> None:
    authorizer, view = Authorizer(), View()
    access = Access(authorizer, cast("ClusterView", view))
    sessions = [session_of(user, host) for user in USERS for host in HOSTS]
    for acls in changes:
        view.change(*acls)
        for session in sessions * 2:
            client = Client((str(session.principal),), session.client_host)

            def decided(
                kind: ResourceType, of: AclOperation, name: str, who: Client = client
            ) -> bool:
                return authorizer.decide(view.image.acls.index, who, of, kind, name).is_allowed

            for name in NAMES:
                assert access.may(session, operation, resource_type, name) == decided(
                    resource_type, operation, name
                )
                for refusal, wanted in (
                    (access.read_refusal, AclOperation.READ),
                    (access.write_refusal, AclOperation.WRITE),
                ):
                    refused = refusal(session, name.encode(), is_id=False)
                    assert (refused is None) == decided(ResourceType.TOPIC, wanted, name)
            refused = access.read_refusal(session, ID.bytes, is_id=True)
            assert (refused is None) == decided(ResourceType.TOPIC, AclOperation.READ, "a")


def test_an_unknown_id_is_neither_allowed_nor_kept() -> None:
    view = View(acl("*"))
    access, session = Access(Authorizer(), cast("ClusterView", view)), session_of()
    for _ in range(2):
        refused = access.read_refusal(session, UUID(int=8).bytes, is_id=True)
        assert isinstance(refused, UnknownTopicId)
    image = dataclasses.replace(view.image, topic_names={UUID(int=8): "late"})
    view.image = image
    assert access.read_refusal(session, UUID(int=8).bytes, is_id=True) is None


def test_an_acl_that_was_never_readable_denies_everything() -> None:
    view = View(acl("*"))
    access = Access(Authorizer(frozenset({"User:root"})), cast("ClusterView", view))
    alice, root = session_of(), session_of("root")
    assert access.read_refusal(alice, b"t", is_id=False) is None
    readable = view.image.acls
    unknown = readable.with_changes({"id": None}, unknown={"id"})
    view.image = dataclasses.replace(view.image, acls=unknown)
    assert access.read_refusal(alice, b"t", is_id=False) is not None
    assert not access.may_with_some(alice, AclOperation.READ, ResourceType.TOPIC)
    assert access.read_refusal(root, b"t", is_id=False) is None
    assert access.may_with_some(root, AclOperation.READ, ResourceType.TOPIC)
    view.image = dataclasses.replace(view.image, acls=unknown.with_changes({"id": None}))
    assert access.read_refusal(alice, b"t", is_id=False) is None


def role(name: str, *members: str) -> Roles:
    return Roles().with_changes({name: Role(name=name, members=members)})


def test_a_role_allows_and_denies_its_members_until_it_changes() -> None:
    """By the user or by a group; a DENY of any principal counts."""
    denied = acl("t", AclOperation.WRITE, AclPermission.DENY)._replace(principal="Role:ops")
    view = View(
        acl("t")._replace(principal="Role:ops"),
        acl("t", AclOperation.WRITE)._replace(principal="User:alice"),
        denied,
    )
    access = Access(Authorizer(frozenset({"Role:admins"})), cast("ClusterView", view))
    alice, bob = session_of(), session_of("bob")
    bob.become(bob.principal, ("data",))

    def rights(session: Session) -> tuple[bool, bool]:
        return (
            access.read_refusal(session, b"t", is_id=False) is None,
            access.write_refusal(session, b"t", is_id=False) is None,
        )

    def change(roles: Roles) -> None:
        view.image = dataclasses.replace(view.image, roles=roles)

    assert (rights(alice), rights(bob)) == ((False, True), (False, False))
    change(role("ops", "User:alice"))
    assert (rights(alice), rights(bob)) == ((True, False), (False, False))
    change(role("ops", "Group:data"))
    assert (rights(alice), rights(bob)) == ((False, True), (True, False))
    change(role("others", "User:alice"))
    assert (rights(alice), rights(bob)) == ((False, True), (False, False))
    change(role("admins", "User:bob"))
    assert (rights(alice), rights(bob)) == ((False, True), (True, True))


def test_a_role_that_was_never_readable_denies_everything() -> None:
    view = View(acl("*"))
    access, alice = Access(Authorizer(), cast("ClusterView", view)), session_of()
    assert access.read_refusal(alice, b"t", is_id=False) is None
    unknown = Roles().with_changes({"ops": None}, unknown={"ops"})
    view.image = dataclasses.replace(view.image, roles=unknown)
    assert access.read_refusal(alice, b"t", is_id=False) is not None
    assert not access.may_with_some(alice, AclOperation.READ, ResourceType.TOPIC)


def test_kept_decisions_are_bounded_however_long_names_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(access_module, "KEPT_BYTES_MAX", 1_000_000)
    access = Access(Authorizer(), cast("ClusterView", View(acl("t"))))
    for number in range(200):
        session = session_of(host=f"10.0.0.{number % 50}")
        name = f"{number}" * 10_000
        assert access.read_refusal(session, name.encode(), is_id=False) is not None
        assert access.read_refusal(session, b"t", is_id=False) is None
        assert not access.may(session, AclOperation.READ, ResourceType.TOPIC, name)
        kept = access._kept.values()
        names = [
            name for one in kept for name in (*one.read_by_name, *(key[2] for key in one.others))
        ]
        assert sum(map(len, names)) < 1_000_000


def test_a_node_may_do_everything() -> None:
    access, session = Access(Authorizer(), cast("ClusterView", View())), session_of()
    assert not access.may_to_cluster(session, AclOperation.CLUSTER_ACTION)
    session.node_id = 2
    assert access.may_to_cluster(session, AclOperation.CLUSTER_ACTION)
    assert access.read_refusal(session, b"a", is_id=False) is None


def test_another_user_of_a_connection_has_other_rights() -> None:
    access = Access(Authorizer(), cast("ClusterView", View(acl("t", principal="User:alice"))))
    session = session_of()
    assert access.read_refusal(session, b"t", is_id=False) is None
    session.become(Principal("User", "bob"))
    assert access.read_refusal(session, b"t", is_id=False) is not None
