"""The schema registry as a Lambda function."""
