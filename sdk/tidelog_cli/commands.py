"""The commands of ``tidelog``. They import their dependencies when run, so help is quick."""

from __future__ import annotations

from tidelog_cli import contexts
from tidelog_cli.administration import (
    group_configs,
    group_offsets,
    groups,
    nodes,
    partitions,
    quotas,
    settings,
    topics,
    transactions,
)
from tidelog_cli.administration.cluster_status import status
from tidelog_cli.administration.debug_bundle import bundle
from tidelog_cli.administration.declared_topics import apply, diff
from tidelog_cli.failures import EXIT_STATUS, CommandGroup
from tidelog_cli.help_names import Commands
from tidelog_cli.local import node_scale
from tidelog_cli.local.certificate import certificate
from tidelog_cli.local.console import console
from tidelog_cli.local.up import up
from tidelog_cli.options import choose_cluster
from tidelog_cli.records import bench
from tidelog_cli.records.consume import consume
from tidelog_cli.records.produce import produce
from tidelog_cli.registry import schema_files, schema_losses, schemas
from tidelog_cli.security import acls, delegation_tokens, roles, users
from tidelog_cli.security.acl_explain import explain
from tidelog_cli.security.iam_token import iam_token
from tidelog_cli.storage import admin_jobs
from tidelog_cli.storage.accepted_store import accept_store
from tidelog_cli.storage.cost import cost
from tidelog_cli.storage.erase import erase
from tidelog_cli.storage.job_compact import compact
from tidelog_cli.storage.job_iceberg import iceberg
from tidelog_cli.storage.jobs import job
from tidelog_cli.storage.repair import repair
from tidelog_cli.storage.restore import restore
from tidelog_cli.storage.tier import status as tier_status
from tidelog_cli.storage.verify import verify

app = Commands(
    name="tidelog",
    cls=CommandGroup,
    help="A log that speaks Kafka's protocol and keeps its history in an object store.",
    epilog=EXIT_STATUS,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.callback()(choose_cluster)

topic = Commands(cls=CommandGroup, help="Topics: settings, partitions, records, leaders and sizes.")
topic.command("create")(topics.create)
topic.command("list")(topics.list_)
topic.command("describe")(topics.describe)
topic.command("alter")(topics.alter)
topic.command("delete")(topics.delete)
topic.command("size")(partitions.size)
topic.command("delete-records")(partitions.delete_records)
topic.command("reassign")(partitions.reassign)
topic.command("elect-leaders")(partitions.elect_leaders)

node = Commands(cls=CommandGroup, help="Nodes: list them, drain one, run more or fewer.")
node.command("list")(nodes.list_)
node.command("drain")(nodes.drain)
node.command("scale")(node_scale.scale)

config = Commands(cls=CommandGroup, help="Settings: list, describe and set them.")
config.command("list")(settings.list_)
config.command("describe")(settings.describe)
config.command("set")(settings.set_)

group = Commands(cls=CommandGroup, help="Groups: their lag, offsets and settings.")
group.command("list")(groups.list_)
group.command("describe")(groups.describe)
group.command("configs")(group_configs.configs)
group.command("alter")(group_configs.alter)
group.command("reset-offsets")(group_offsets.reset_offsets)
group.command("delete-offsets")(group_offsets.delete_offsets)
group.command("delete")(groups.delete)

transaction = Commands(cls=CommandGroup, help="Transactions: list, describe and abort them.")
transaction.command("list")(transactions.list_)
transaction.command("describe")(transactions.describe)
transaction.command("hanging")(transactions.hanging)
transaction.command("abort")(transactions.abort)

user = Commands(cls=CommandGroup, help="Users: list, add, alter and remove them.")
user.command("list")(users.list_)
user.command("add")(users.add)
user.command("alter")(users.alter)
user.command("remove")(users.remove)

token = Commands(cls=CommandGroup, help="Delegation tokens: create, list, renew and expire them.")
token.command("create")(delegation_tokens.create)
token.command("list")(delegation_tokens.list_)
token.command("renew")(delegation_tokens.renew)
token.command("expire")(delegation_tokens.expire)

acl = Commands(cls=CommandGroup, help="ACLs: list, add, remove and explain them.")
acl.command("list")(acls.list_)
acl.command("add")(acls.add)
acl.command("remove")(acls.remove)
acl.command("explain")(explain)

role = Commands(cls=CommandGroup, help="Roles: sets of users and groups, for ACLs.")
role.command("list")(roles.list_)
role.command("show")(roles.show)
role.command("create")(roles.create)
role.command("add")(roles.add)
role.command("remove")(roles.remove)
role.command("delete")(roles.delete)

schema = Commands(cls=CommandGroup, help="Schemas of records, in a schema registry.")
schema.command("list")(schemas.list_)
schema.command("get")(schemas.get)
schema.command("register")(schemas.register)
schema.command("check")(schemas.check)
schema.command("delete")(schemas.delete)
schema.command("config")(schemas.config)
schema.command("export")(schema_files.export)
schema.command("import")(schema_files.import_)
schema.command("accept-loss")(schema_losses.accept_loss)

quota = Commands(cls=CommandGroup, help="Quotas of users, clients and addresses.")
quota.command("list")(quotas.list_)
quota.command("set")(quotas.set_)
quota.command("remove")(quotas.remove)
quota.command("top")(quotas.top)

context = Commands(cls=CommandGroup, help="Contexts: names for clusters, and how to reach them.")
context.command("list")(contexts.list_)
context.command("show")(contexts.show)
context.command("use")(contexts.use)
context.command("add")(contexts.add)
context.command("remove")(contexts.remove)

measuring = Commands(cls=CommandGroup, help="Measure the cluster: throughput and latency.")
measuring.command("produce")(bench.produce)
measuring.command("consume")(bench.consume)
measuring.command("end-to-end")(bench.end_to_end)

debug = Commands(cls=CommandGroup, help="Collect data for a bug report.")
debug.command("bundle")(bundle)

tier = Commands(cls=CommandGroup, help="Segments in the object store.")
tier.command("status")(tier_status)
tier.command("accept-store")(accept_store)

job.command("compact")(compact)
job.command("iceberg")(iceberg)

admin_job = Commands(cls=CommandGroup, help="Jobs of the admin API: list, show and cancel them.")
admin_job.command("list")(admin_jobs.list_)
admin_job.command("show")(admin_jobs.show)
admin_job.command("cancel")(admin_jobs.cancel)

app.command("up")(up)
app.command("console")(console)
app.command("status")(status)
app.command("cost")(cost)
app.add_typer(node, name="node")
app.add_typer(config, name="config")
app.add_typer(topic, name="topic")
app.command("diff")(diff)
app.command("apply")(apply)
app.command("produce")(produce)
app.command("consume")(consume)
app.add_typer(group, name="group")
app.add_typer(transaction, name="transaction")
app.add_typer(user, name="user")
app.add_typer(token, name="token")
app.add_typer(acl, name="acl")
app.add_typer(role, name="role")
app.add_typer(schema, name="schema")
app.add_typer(quota, name="quota")
app.add_typer(context, name="context")
app.command("iam-token")(iam_token)
app.add_typer(tier, name="tier")
app.add_typer(job, name="job")
app.add_typer(admin_job, name="admin-job")
app.add_typer(measuring, name="bench")
app.add_typer(debug, name="debug")
app.command("erase")(erase)
app.command("verify")(verify)
app.command("restore")(restore)
app.command("repair")(repair)
app.command("certificate")(certificate)
