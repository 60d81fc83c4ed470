"""Parses the settings that say whether, and for whom, ACLs count."""

from __future__ import annotations

# The second is Kafka's name for the same rules.
ACL_AUTHORIZERS = ("tidelog.acl", "org.apache.kafka.metadata.authorizer.StandardAuthorizer")


def check_authorizer(name: str) -> None:
    """Raise ``ValueError`` unless the name is empty or names an authorizer."""
    if name and name not in ACL_AUTHORIZERS:
        raise ValueError(f"must be empty, {' or '.join(ACL_AUTHORIZERS)}")


def parse_super_users(text: str) -> frozenset[str]:
    """Return the principals of ``super.users``, which semicolons separate.

    Raises ``ValueError`` for one without a kind, as in ``User:alice``.
    """
    principals = [part.strip() for part in text.split(";") if part.strip()]
    for principal in principals:
        kind, colon, name = principal.partition(":")
        if not (kind and colon and name):
            raise ValueError(f"{principal!r} must be a principal such as User:alice")
    return frozenset(principals)
