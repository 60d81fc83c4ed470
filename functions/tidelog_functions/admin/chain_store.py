"""Whether the object store can have chains, asked before a topic is to be diskless.

Nodes ask the same (``ChainStoreCheck``). On AWS it is not asked: S3 creates an object once, and the
function may not write objects.
"""

from __future__ import annotations

from collections.abc import Mapping
from uuid import uuid4

from tidelog_core.admin.settings.diskless_topics import ENABLE
from tidelog_core.diskless.chain.expiring_rules import check_keeps_chains
from tidelog_core.diskless.chain.start_probe import check_creates_once
from tidelog_core.errors import InvalidConfig, TidelogError

from tidelog_functions.admin.cluster import AdminCluster
from tidelog_functions.admin.problems import Misconfigured


async def require_chains(cluster: AdminCluster, configs: Mapping[str, str | None]) -> None:
    """Raise ``InvalidConfig`` if these settings ask for chains and the store can have none.

    A store that gives no answer says nothing: nodes ask again before they write.
    """
    if (configs.get(ENABLE) or "").lower() != "true" or cluster.is_on_aws:
        return
    cluster_id = cluster.view.image.cluster_id
    try:
        store = cluster.objects()
        await check_creates_once(store, cluster_id, uuid4())
        await check_keeps_chains(store, cluster_id)
    except InvalidConfig:
        raise
    except (TidelogError, OSError, Misconfigured):
        return
