"""The admin for programs without an event loop."""

from __future__ import annotations

from tidelog.administering.every_call import EveryCall
from tidelog.sync import Blocking, SyncClient


class SyncAdmin(SyncClient[EveryCall]):
    """``Admin`` without an event loop; usable from any thread."""

    create_topic = Blocking(EveryCall.create_topic)
    create_topics = Blocking(EveryCall.create_topics)
    delete_topics = Blocking(EveryCall.delete_topics)
    list_topics = Blocking(EveryCall.list_topics)
    describe_topics = Blocking(EveryCall.describe_topics)
    create_partitions = Blocking(EveryCall.create_partitions)
    delete_records = Blocking(EveryCall.delete_records)
    list_offsets = Blocking(EveryCall.list_offsets)
    describe_configs = Blocking(EveryCall.describe_configs)
    alter_configs = Blocking(EveryCall.alter_configs)
    describe_cluster = Blocking(EveryCall.describe_cluster)
    describe_log_dirs = Blocking(EveryCall.describe_log_dirs)
    alter_reassignments = Blocking(EveryCall.alter_reassignments)
    list_reassignments = Blocking(EveryCall.list_reassignments)
    elect_leaders = Blocking(EveryCall.elect_leaders)
    list_groups = Blocking(EveryCall.list_groups)
    describe_groups = Blocking(EveryCall.describe_groups)
    delete_groups = Blocking(EveryCall.delete_groups)
    list_group_offsets = Blocking(EveryCall.list_group_offsets)
    group_lag = Blocking(EveryCall.group_lag)
    alter_group_offsets = Blocking(EveryCall.alter_group_offsets)
    reset_group_offsets = Blocking(EveryCall.reset_group_offsets)
    delete_group_offsets = Blocking(EveryCall.delete_group_offsets)
    list_share_group_offsets = Blocking(EveryCall.list_share_group_offsets)
    share_group_lag = Blocking(EveryCall.share_group_lag)
    alter_share_group_offsets = Blocking(EveryCall.alter_share_group_offsets)
    delete_share_group_offsets = Blocking(EveryCall.delete_share_group_offsets)
    list_transactions = Blocking(EveryCall.list_transactions)
    describe_transactions = Blocking(EveryCall.describe_transactions)
    describe_producers = Blocking(EveryCall.describe_producers)
    find_hanging_transactions = Blocking(EveryCall.find_hanging_transactions)
    abort_transaction = Blocking(EveryCall.abort_transaction)
    describe_users = Blocking(EveryCall.describe_users)
    set_password = Blocking(EveryCall.set_password)
    delete_credentials = Blocking(EveryCall.delete_credentials)
    describe_acls = Blocking(EveryCall.describe_acls)
    create_acls = Blocking(EveryCall.create_acls)
    delete_acls = Blocking(EveryCall.delete_acls)
    describe_roles = Blocking(EveryCall.describe_roles)
    create_role = Blocking(EveryCall.create_role)
    change_role = Blocking(EveryCall.change_role)
    delete_role = Blocking(EveryCall.delete_role)
    describe_quotas = Blocking(EveryCall.describe_quotas)
    alter_quotas = Blocking(EveryCall.alter_quotas)
    describe_quota_use = Blocking(EveryCall.describe_quota_use)
