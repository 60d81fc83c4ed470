"""Tables of the formats Delta and Iceberg, and plain Parquet."""
