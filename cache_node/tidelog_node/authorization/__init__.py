"""The authorization of clients: the ACLs' decisions, and the guards of the APIs."""
