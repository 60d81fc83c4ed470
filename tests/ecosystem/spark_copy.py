"""Spark's own Kafka source into files: ``spark_copy.py ADDRESS FOLDER``. It is killed."""

from __future__ import annotations

import sys
from pathlib import Path

from tools import spark_kafka
from tools.local_spark import local_session


def main() -> None:
    """Copy until killed."""
    address, folder = sys.argv[1:]
    jars = ",".join(map(str, spark_kafka.jars()))
    spark = local_session("copy", settings={"spark.jars": jars})
    rows = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", address)
        .option("subscribe", "from")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", "2000")
        .load()
        .selectExpr("CAST(value AS STRING) AS value")
    )
    stream = (
        rows.writeStream.format("json")
        .option("path", str(Path(folder, "out")))
        .option("checkpointLocation", str(Path(folder, "checkpoint")))
        .start()
    )
    stream.awaitTermination()


if __name__ == "__main__":
    main()
