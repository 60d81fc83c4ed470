"""What clients, disks and clocks did to a node once, done to three live nodes again."""
