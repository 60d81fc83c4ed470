"""Whether a rule of the bucket deletes objects of chains: then neither log nor fencing is safe.

Nodes delete the objects of chains themselves, within an hour or so. Seals stay for ever: if one
expired, a node that was paused for long could go on, and acknowledge records that nobody reads.
"""

from __future__ import annotations

from tidelog_core.diskless.wal.keys import chains_prefix
from tidelog_core.errors import InvalidConfig
from tidelog_core.objects.expiry import ExpiryRule, expiry_rules
from tidelog_core.objects.store import ObjectStore


async def chain_expiring_rules(store: ObjectStore, cluster_id: str) -> list[ExpiryRule]:
    """Return the rules that delete objects of the cluster's chains. Raises the store's errors."""
    prefix = chains_prefix(cluster_id)
    return [
        rule
        for rule in await expiry_rules(store)
        if rule.prefix.startswith(prefix) or prefix.startswith(rule.prefix)
    ]


def describe_expiring(rule: ExpiryRule, cluster_id: str) -> str:
    """Return a sentence on the rule's fault and its remedy."""
    return (
        f"the bucket's lifecycle rule {rule.name!r} deletes objects below"
        f" {chains_prefix(cluster_id)} {rule.when}, which diskless topics need: limit the rule to"
        " another prefix, or remove it"
    )


async def check_keeps_chains(store: ObjectStore, cluster_id: str) -> None:
    """Raise ``InvalidConfig`` if a rule deletes objects of chains; the store's errors."""
    rules = await chain_expiring_rules(store, cluster_id)
    if rules:
        raise InvalidConfig([describe_expiring(rule, cluster_id) for rule in rules])
