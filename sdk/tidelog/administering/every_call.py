"""Everything that an ``Admin`` can be asked."""

from __future__ import annotations

from tidelog.administering.configs import ConfigCalls
from tidelog.administering.share_groups import ShareGroupCalls
from tidelog.administering.transactions import TransactionCalls


class EveryCall(ShareGroupCalls, ConfigCalls, TransactionCalls):
    """The calls of an admin, once its options are checked."""
