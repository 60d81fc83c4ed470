"""The admin API: an HTTP interface to ``tidelog_core.admin``, behind API Gateway and IAM.

    event → ``http`` → ``contract`` (route and checks) → an operation → answer or ``problems``

``openapi.json`` is the contract: routes and checks are read from it, so the documentation
always matches the behaviour.
"""
