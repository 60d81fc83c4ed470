"""Commands on schemas, and the client of a schema registry."""
