"""The records of users, delegation tokens, ACLs, roles and quotas."""
