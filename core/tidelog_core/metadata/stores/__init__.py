"""The metadata stores: DynamoDB's and SQLite's, and what they share."""
