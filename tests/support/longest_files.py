"""The files whose tests take longest, the longest first.

A file's tests stay with one worker. If a long file starts last, the other workers idle while
it runs, so these start first. A file that is missing here costs only a little time.

Tests of a whole folder stay together where they share what takes longest to start: a session of
Spark, a broker of Apache Kafka, the servers that stand in for AWS. These folders begin before all
files.
"""

from __future__ import annotations

WHOLE_FOLDERS = ("tests/spark", "tests/kafka", "tests/aws")
LONGEST_FILES = (
    "tests/simulation/diskless/test_diskless_simulation.py",
    "tests/simulation/test_simulation.py",
    "tests/simulation/diskless/test_node_slices.py",
    "tests/clients/test_clients.py",
    "tests/node/replication/test_replication.py",
    "tests/node/tier/test_bad_input.py",
    "tests/node/tier/test_crash.py",
    "tests/node/test_clients.py",
    "tests/node/diskless/test_deferred_fills.py",
    "tests/node/tier/test_copying.py",
    "tests/node/tier/test_reading.py",
    "tests/node/security/test_posing_as_nodes.py",
    "tests/node/diskless/test_prefetch.py",
    "tests/node/test_tier_end_to_end.py",
    "tests/node/test_damaged_metadata.py",
    "tests/docs/test_tutorial.py",
    "tests/node/membership/test_failover.py",
    "tests/node/compaction/test_compaction.py",
    "tests/node/coordinator/test_group_clients.py",
    "tests/node/coordinator/test_consumer_clients.py",
    "tests/node/coordinator/test_consumer_simulation.py",
    "tests/node/tier/test_retention_loop.py",
    "tests/cli/records/test_records.py",
    "tests/node/transactions/test_clients.py",
    "tests/node/wire/test_fetch.py",
    "tests/sdk/test_log_truncation.py",
    "tests/node/test_recovery.py",
    "tests/sdk/test_transactions.py",
    "tests/node/test_many_partitions.py",
    "tests/node/transactions/test_crash.py",
    "tests/sdk/test_producer.py",
    "tests/cli/storage/test_tier.py",
    "tests/cli/storage/test_restore.py",
)


def place_of(path: str) -> int:
    """Return when a file's tests begin: before those of a higher place."""
    if (folder := _folder_of(path)) is not None:
        return WHOLE_FOLDERS.index(folder) - len(WHOLE_FOLDERS)
    return _PLACES.get(path, len(_PLACES))


def shared_by(path: str) -> str:
    """Return the name of those that one worker runs: the file's, or its folder's."""
    return _folder_of(path) or path


def _folder_of(path: str) -> str | None:
    return next((one for one in WHOLE_FOLDERS if path.startswith(f"{one}/")), None)


_PLACES = {name: place for place, name in enumerate(LONGEST_FILES)}
