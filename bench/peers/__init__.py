"""Runs the same work against Tidelog, Apache Kafka and Tansu, in turns."""
