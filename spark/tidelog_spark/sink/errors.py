"""The sink's own errors, in addition to the SDK's."""

from __future__ import annotations

from collections.abc import Iterable

from tidelog.errors import ErrorCode, TidelogError

from tidelog_spark.sink.runs import DecidingRun


class CorruptDecision(TidelogError):
    """A group's committed offset is not what the sink has stored there."""

    def __init__(self, group_id: str, problem: str) -> None:
        super().__init__(
            f"the offsets of group {group_id!r} are not a decision of this sink: {problem}. Find"
            " the program that commits to the group. To go on without the decision, delete the"
            " group: the last micro-batch may be written again"
        )
        self.group_id = group_id


class UnknownDecisionFormat(TidelogError):
    """A later version of this program has decided the last micro-batch, in another form."""

    code = ErrorCode.unsupported_version
    hint = (
        "run the query with the later version, or with a new checkpoint if rows may be written"
        " again"
    )

    def __init__(self, group_id: str, found: int, *, known: int) -> None:
        super().__init__(
            f"the decision in group {group_id!r} has format {found}, and this program reads formats"
            f" up to {known}: a later version of Tidelog has run the query"
        )
        self.group_id, self.found, self.known = group_id, found, known


class BatchSuperseded(TidelogError):
    """Another run of the query has written this micro-batch, or a later one. This run has not."""

    code = ErrorCode.producer_fenced

    def __init__(
        self, batch_id: int, decided_batch_id: int | None, run: DecidingRun | None
    ) -> None:
        """The decided batch is ``None`` if the other run is only about to decide."""
        place = "deciding it" if decided_batch_id is None else f"at {decided_batch_id}"
        name = "" if run is None else f", {run},"
        super().__init__(
            f"micro-batch {batch_id} is not written by this run: another run of the query{name} is"
            f" {place}. Two must not share a checkpoint: stop one of them"
        )
        self.batch_id, self.decided_batch_id, self.run = batch_id, decided_batch_id, run


class TransactionsEnded(TidelogError):
    """Transactions ended before the micro-batch was decided: nothing of it is committed."""

    code = ErrorCode.transaction_abortable

    def __init__(self, batch_id: int, tasks: Iterable[int], timeout_ms: int) -> None:
        numbers = sorted(tasks)
        super().__init__(
            f"micro-batch {batch_id} is not committed: the transactions of tasks {numbers} have"
            f" ended before it. It took longer than 'kafka.transaction.timeout.ms',"
            f" {timeout_ms}: then make micro-batches smaller, or that longer. Or another run of the"
            " query has ended them: stop one of the two"
        )
        self.batch_id, self.tasks = batch_id, numbers


class BatchIncomplete(TidelogError):
    """A micro-batch was decided, but transactions were aborted before their commit.

    A run with the same number of tasks writes the rows of these tasks again.
    """

    code = ErrorCode.transaction_abortable

    def __init__(self, batch_id: int, tasks: Iterable[int], task_count: int) -> None:
        numbers = sorted(tasks)
        super().__init__(
            f"the rows of tasks {numbers} of micro-batch {batch_id} are missing: the driver ended"
            " between the decision and their commit, and their transactions have timed out."
            f" Start the query again so that the batch has {task_count} tasks with the same rows"
        )
        self.batch_id, self.tasks, self.task_count = batch_id, numbers, task_count
