"""Sources of schemas: a registry, or the bucket."""
