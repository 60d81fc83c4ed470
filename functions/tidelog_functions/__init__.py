"""Lambda functions: thin, stateless shells over ``tidelog_core``.

    TIDELOG_METADATA   location of the metadata store, e.g. ``dynamodb://<table>?region=<region>``
    TIDELOG_OBJECTS    location of the segments, e.g. ``s3://<bucket>/<prefix>``

Each package here has ``handler.handle(event, context)``, which Lambda calls.
"""
