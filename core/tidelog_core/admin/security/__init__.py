"""Who may log in and what they may do: ACLs, roles, users and delegation tokens."""
