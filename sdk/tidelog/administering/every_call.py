"""All calls of an ``Admin`` in one class."""

from __future__ import annotations

from tidelog.administering.acls import AclCalls
from tidelog.administering.configs import ConfigCalls
from tidelog.administering.delegation_tokens import DelegationTokenCalls
from tidelog.administering.partitions import PartitionCalls
from tidelog.administering.quotas import QuotaCalls
from tidelog.administering.roles import RoleCalls
from tidelog.administering.share_groups import ShareGroupCalls
from tidelog.administering.transactions import TransactionCalls
from tidelog.administering.users import UserCalls


class EveryCall(
    PartitionCalls,
    ShareGroupCalls,
    ConfigCalls,
    TransactionCalls,
    UserCalls,
    DelegationTokenCalls,
    AclCalls,
    RoleCalls,
    QuotaCalls,
):
    """An admin whose options have been checked; it has every admin call."""
