"""Whether a store keeps the first object of a key: without that, chains are not safe.

AWS, R2 and Ceph do. Small servers exist that know ``If-None-Match`` and take no notice of it.
"""

from __future__ import annotations

from uuid import UUID

from tidelog_core.diskless.wal.keys import chains_prefix
from tidelog_core.errors import InvalidConfig, ObjectExists
from tidelog_core.objects.store import ObjectStore

_FIRST, _SECOND = b"first", b"second"


def probe_key(cluster_id: str, probe_id: UUID) -> str:
    """Return the key of a probe's object; it is no chain's."""
    return f"{chains_prefix(cluster_id)}probe-{probe_id}"


async def check_creates_once(store: ObjectStore, cluster_id: str, probe_id: UUID) -> None:
    """Create an object twice. Raise ``InvalidConfig`` unless the second one is refused.

    ``probe_id`` is new with every call. Raises what the store raises if it cannot be known.
    """
    key = probe_key(cluster_id, probe_id)
    await store.put(key, _FIRST)
    try:
        await store.put(key, _SECOND)
        is_refused = False
    except ObjectExists:
        is_refused = True
    is_kept = await store.get(key) == _FIRST
    await store.delete([key])
    if not (is_refused and is_kept):
        raise InvalidConfig(
            [
                "the object store writes over an object that it was asked to create only if there"
                " is none (If-None-Match: *), so diskless topics would lose records in it: use a"
                " store that supports conditional writes, or topics that are not diskless"
            ]
        )
