"""Share groups: members, records, acknowledgements, offsets (KIP-932)."""
