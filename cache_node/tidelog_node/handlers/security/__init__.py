"""Logins, users, delegation tokens, ACLs and roles."""
