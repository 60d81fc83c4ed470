"""The inside of the admin: one module per kind of thing administered."""
