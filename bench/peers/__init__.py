"""The same work against Tidelog, Apache Kafka and Tansu, in turns in one run."""
