"""What exports need of a table, whatever its format: its interface, its place, its lease."""
