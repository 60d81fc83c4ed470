"""What a node answers over HTTP."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from prometheus_client.parser import text_string_to_metric_families

SECONDS_MAX = 60.0


class Answer(NamedTuple):
    """One answer."""

    status: int
    content_type: str
    body: bytes


def get(address: str, path: str, *, method: str = "GET") -> Answer:
    """Ask the address, ``host:port``, for a page."""
    connection = http.client.HTTPConnection(address, timeout=SECONDS_MAX)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        content_type = response.headers["Content-Type"]
        return Answer(response.status, content_type, response.read())
    finally:
        connection.close()


def readiness(address: str) -> tuple[int, Mapping[str, Any]]:
    """Return status and body of ``/readyz``."""
    answer = get(address, "/readyz")
    return answer.status, json.loads(answer.body)


class Scraped:
    """The samples of one scrape."""

    def __init__(self, text: str) -> None:
        self.families = {one.name: one for one in text_string_to_metric_families(text)}
        self._samples = [one for family in self.families.values() for one in family.samples]

    def values(self, name: str, **labels: str) -> list[float]:
        """Return the values of the samples with this name and at least these labels."""
        return [
            one.value
            for one in self._samples
            if one.name == name and labels.items() <= one.labels.items()
        ]

    def value(self, name: str, **labels: str) -> float:
        """Return the sum of the samples; 0 if there are none."""
        return sum(self.values(name, **labels))

    def labels(self, name: str, label: str) -> set[str]:
        """Return the values of a label of the samples with this name."""
        return {one.labels[label] for one in self._samples if one.name == name}


def scrape(address: str) -> Scraped:
    """Scrape the node at this address."""
    answer = get(address, "/metrics")
    assert answer.status == 200, answer
    return Scraped(answer.body.decode())
