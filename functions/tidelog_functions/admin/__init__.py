"""The admin API: an HTTP front of ``tidelog_core.admin``, behind API Gateway and IAM.

    event → ``http`` → ``contract`` (route and checks) → an operation → answer or ``problems``

``openapi.json`` is the contract: routes and checks are read from it, so that it cannot
say anything else than what is done.
"""
