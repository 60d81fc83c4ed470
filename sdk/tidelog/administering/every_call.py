"""All calls of an ``Admin`` in one class."""

from __future__ import annotations

from tidelog.administering.configs import ConfigCalls
from tidelog.administering.share_groups import ShareGroupCalls
from tidelog.administering.transactions import TransactionCalls


class EveryCall(ShareGroupCalls, ConfigCalls, TransactionCalls):
    """An admin whose options have been checked; it has every admin call."""
