"""The offsets and runs in a Delta table's log, where a RESTORE has left some of them out.

RESTORE brings files of an older version back, and leaves the transactions as they are. So a commit
has the offsets in its information, too: if none has followed a RESTORE, those of the older
version count.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from tidelog_spark.jobs.tables.export_table import CorruptExport

APPLICATION = "tidelog-export/"
RUN = "tidelog.run"  # in a commit's information
OFFSETS = "tidelog.offsets"  # of an export's commit: of all its partitions, after it
ERASED = "tidelog.erased-rows"  # of an erasure's commit
COMMITS_LOOKED_AT = 100
_HISTORY_SIZES = (1, 10, COMMITS_LOOKED_AT)  # the last commit most often has all offsets


def has_commit_of(table: DeltaTable, run_id: str) -> bool:
    """Return whether one of the last commits is the run's: its files must stay."""
    return any(one.get(RUN) == run_id for one in table.history(COMMITS_LOOKED_AT))


def transaction_offsets(table: DeltaTable, partitions: Collection[str]) -> dict[str, int]:
    """Return the versions of the partitions' transactions, of those that have one."""
    found = {}
    for partition in partitions:
        version = table.transaction_version(APPLICATION + partition)
        if version is not None:
            found[partition] = version
    return found


def stored_offsets(location: str, table: DeltaTable, partitions: Collection[str]) -> dict[str, int]:
    """Return the offsets up to which the table has its rows."""
    known = transaction_offsets(table, partitions)  # The others were never exported.
    found: dict[str, int] = {}
    state, pending = table, {*known}
    for count in _HISTORY_SIZES:
        entries = table.history(count)
        found, state, pending = _offsets_in_history(location, table, entries, {*known})
        if not pending or len(entries) < count:
            break
    return {**found, **transaction_offsets(state, pending)}


def undone_runs(location: str, table: DeltaTable) -> set[str]:
    """Return the runs of versions that a RESTORE has left out."""
    found, restored = set[str](), None
    for entry in table.history(COMMITS_LOOKED_AT):
        if restored is not None and entry["version"] > restored:
            if RUN in entry:
                found.add(entry[RUN])
            continue
        restored = None
        if _is_restore(entry):
            number = str(_parameters(entry).get("version"))
            is_known = number.isdecimal()
            restored = int(number) if is_known else _restored(location, entry).version()
    return found


def _offsets_in_history(
    location: str,
    table: DeltaTable,
    entries: Sequence[Mapping[str, Any]],
    pending: set[str],
) -> tuple[dict[str, int], DeltaTable, set[str]]:
    """Return the offsets in the information of exports' commits, the newest of each partition.

    Also returns the partitions without such an offset, and the state whose transactions count for
    them. ``entries`` are the newest commits first.
    """
    found: dict[str, int] = {}
    for entry in entries:
        if not pending:
            break
        if entry["version"] > table.version():
            continue  # Left out by a RESTORE.
        if RUN in entry and ERASED not in entry:
            # Commits of earlier programs have no offsets in their information.
            known = {*json.loads(entry[OFFSETS])} & pending if OFFSETS in entry else pending
            found |= transaction_offsets(table, known)
            pending = pending - known
        elif _is_restore(entry):
            table = _restored(location, entry)
            pending = {*transaction_offsets(table, pending)}
    return found, table, pending


def _is_restore(entry: Mapping[str, Any]) -> bool:
    return str(entry.get("operation", "")).upper() == "RESTORE"


def _parameters(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    parameters: Mapping[str, Any] = entry.get("operationParameters") or {}
    return parameters


def _restored(location: str, restore: Mapping[str, Any]) -> DeltaTable:
    """Return the version that the RESTORE has brought back. Raises ``CorruptExport``."""
    version = _parameters(restore).get("version")
    time = _parameters(restore).get("timestamp") or _parameters(restore).get("datetime")
    table = DeltaTable(location)
    try:
        if version is not None and str(version).isdecimal():
            table.load_as_version(int(version))
        elif time is not None:
            table.load_as_version(str(time))
        else:
            raise ValueError("it does not say to which version")
    except (DeltaError, ValueError) as error:
        raise CorruptExport(
            f"version {restore.get('version')} of {location} is a RESTORE whose version cannot be"
            f" read any more: {error}; export into another table"
        ) from None
    return table
