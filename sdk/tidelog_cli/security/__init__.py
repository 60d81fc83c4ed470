"""Commands on users, tokens, ACLs and roles."""
