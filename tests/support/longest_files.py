"""The files whose tests take longest, the longest first.

A file's tests stay with one worker. If a long file starts last, the other workers idle while
it runs, so these start first. A file that is missing here costs only a little time.
"""

from __future__ import annotations

LONGEST_FILES = (
    "tests/aws/test_dynamodb_store.py",
    "tests/aws/test_s3_store.py",
    "tests/clients/test_clients.py",
    "tests/node/replication/test_replication.py",
    "tests/aws/test_localstack.py",
    "tests/aws/test_deploy.py",
    "tests/aws/test_store_faults.py",
    "tests/node/tier/test_bad_input.py",
    "tests/node/tier/test_crash.py",
    "tests/aws/test_template.py",
    "tests/node/membership/test_failover.py",
    "tests/spark/test_spark_stream.py",
    "tests/node/compaction/test_compaction.py",
    "tests/spark/test_audit.py",
    "tests/chaos/test_chaos.py",
    "tests/node/coordinator/test_group_clients.py",
    "tests/node/coordinator/test_consumer_clients.py",
    "tests/node/coordinator/test_consumer_simulation.py",
    "tests/spark/test_tail.py",
    "tests/node/tier/test_retention_loop.py",
    "tests/cli/test_records.py",
    "tests/node/transactions/test_clients.py",
    "tests/node/test_wire_fetch.py",
    "tests/sdk/test_log_truncation.py",
    "tests/spark/test_compact_job.py",
    "tests/node/test_recovery.py",
    "tests/sdk/test_transactions.py",
    "tests/node/test_many_partitions.py",
    "tests/node/transactions/test_crash.py",
    "tests/sdk/test_producer.py",
    "tests/spark/test_sink.py",
    "tests/spark/test_backfill.py",
    "tests/cli/test_tier.py",
    "tests/cli/test_restore.py",
)
