"""A Spark driver of its own, to be killed: a stream into a table of files and a journal.

    python -m tests.spark.streaming.stream_driver OPTIONS_JSON FOLDER

Writes ``FOLDER/table`` and appends each batch's number and rows to ``FOLDER/journal``,
a line a batch, as ``foreachBatch`` sees them. Ends when it has read what is there.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import DataFrame

from tools.local_spark import local_session


def main(options: dict[str, str], folder: Path) -> None:
    """Run the two streams side by side until both have read what is there."""
    settings = {"spark.local.dir": str(folder / "local")}
    spark = local_session("tidelog-stream", settings=settings)
    spark.sparkContext.setLogLevel("OFF")
    table = spark.readStream.format("tidelog").options(**options).load()
    files = (
        table.writeStream.format("parquet")
        .option("checkpointLocation", str(folder / "files-checkpoint"))
        .trigger(availableNow=True)
        .start(str(folder / "table"))
    )
    journal = (folder / "journal").open("a")

    def note(batch: DataFrame, number: int) -> None:
        rows = sorted(map(list, batch.select("partition", "offset").collect()))
        journal.write(json.dumps([number, rows]) + "\n")
        journal.flush()

    noted = (
        table.writeStream.foreachBatch(note)
        .option("checkpointLocation", str(folder / "journal-checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    files.awaitTermination()
    noted.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), Path(sys.argv[2]))
