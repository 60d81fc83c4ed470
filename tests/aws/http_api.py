"""An HTTP API behind its gateway, called as AWS's clients do: signed, with SigV4."""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

SECONDS_MAX = 60.0  # a function that has not run yet is slow


@dataclass(frozen=True, slots=True)
class HttpApi:
    """One API of a stand-in for AWS."""

    endpoint: str  # of the stand-in
    url: str  # as the stack gives it: https://<api id>.execute-api.<region>.amazonaws.com
    region: str
    context: ssl.SSLContext | None = None

    def call(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        credentials: Mapping[str, str] | None,
    ) -> tuple[int, Any]:
        """Return status and document; ``credentials`` as in the environment, or unsigned."""
        data = None if body is None else json.dumps(body).encode()
        request = AWSRequest(method, f"{self.endpoint}{path}", data=data)
        request.headers["Host"] = self._host
        if data is not None:
            request.headers["Content-Type"] = "application/json"
        if credentials is not None:
            who = Credentials(
                credentials["AWS_ACCESS_KEY_ID"],
                credentials["AWS_SECRET_ACCESS_KEY"],
                credentials.get("AWS_SESSION_TOKEN"),
            )
            SigV4Auth(who, "execute-api", self.region).add_auth(request)
        sent = urllib.request.Request(
            request.url, data=data, headers=dict(request.headers), method=method
        )
        try:
            with urllib.request.urlopen(sent, timeout=SECONDS_MAX, context=self.context) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read())

    @property
    def _host(self) -> str:
        # The stand-in tells its APIs apart by the first part, as AWS does.
        api_id = self.url.removeprefix("https://").partition(".")[0]
        return f"{api_id}.execute-api.localhost:{urlsplit(self.endpoint).port}"
