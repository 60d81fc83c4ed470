"""The implementation of ``Admin``, one module per kind of resource."""
