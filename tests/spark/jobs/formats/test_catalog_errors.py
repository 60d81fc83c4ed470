"""What the libraries of catalogs raise, from servers that answer so, becomes an error to act on."""

from __future__ import annotations

import http.server
import json
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from hive_metastore import ThriftHiveMetastore
from hive_metastore.ttypes import MetaException
from tidelog_cli.storage.job_iceberg import may_pass
from tidelog_core.errors import InvalidConfig, OutcomeUnknown, StoreUnavailable, TidelogError
from tidelog_spark.jobs.formats.catalog_errors import CatalogRefused, mapped_errors, text_of
from tidelog_spark.jobs.formats.iceberg_table import IcebergTable, open_catalog
from tidelog_spark.jobs.tables.export_table import TimePartitions
from tidelog_spark.jobs.tables.table_access import TableAccessDenied

from tests.spark.jobs.exported import Source

NOBODY = "127.0.0.1:9"


class Answering(http.server.BaseHTTPRequestHandler):
    """Answers every call of AWS's JSON protocol with one error."""

    status: int
    code: str

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        body = json.dumps({"__type": self.code, "message": "This is why."}).encode()
        self.send_response(self.status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Stay silent."""


@contextmanager
def answering(status: int, code: str) -> Iterator[str]:
    handler = type("Handler", (Answering,), {"status": status, "code": code})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


class Metastore:
    """Hive's metastore, whose answers are errors."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def get_table(self, dbname: str, tbl_name: str) -> None:
        raise self._error


@contextmanager
def metastore(error: Exception) -> Iterator[str]:
    from thrift.protocol.TBinaryProtocol import TBinaryProtocol
    from thrift.transport.TSocket import TSocket
    from thrift.transport.TTransport import TBufferedTransport, TTransportException

    listener = socket.create_server(("127.0.0.1", 0))
    processor = ThriftHiveMetastore.Processor(Metastore(error))

    def serve() -> None:
        accepted, _ = listener.accept()
        wire = TSocket()
        wire.setHandle(accepted)
        protocol = TBinaryProtocol(TBufferedTransport(wire))
        with suppress(EOFError, TTransportException):  # the client has left
            while True:
                processor.process(protocol, protocol)
        wire.close()

    thread = threading.Thread(target=serve)
    thread.start()
    yield f"127.0.0.1:{listener.getsockname()[1]}"
    thread.join()
    listener.close()


def told(source: Source, properties: Mapping[str, Any]) -> TidelogError:
    """Return the error of an export to the catalog's table."""
    try:
        catalog = open_catalog(properties)
        source.export(None, IcebergTable(catalog, "lake.t", TimePartitions.DAY))
    except TidelogError as error:
        return error
    raise AssertionError("the export has succeeded")


def glue(url: str) -> dict[str, Any]:
    secret = {"glue.access-key-id": "a", "glue.secret-access-key": "b"}
    once = {"glue.max-retries": 1}  # pyiceberg takes no text for it
    return {"type": "glue", "glue.endpoint": url, "glue.region": "us-east-1", **secret, **once}


def hive(address: str) -> dict[str, str]:
    return {"type": "hive", "uri": f"thrift://{address}"}


@pytest.fixture
def source(tmp_path: Path) -> Source:
    found = Source(tmp_path)
    found.grow(1)
    return found


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (400, "ThrottlingException", StoreUnavailable),
        (400, "ExpiredTokenException", StoreUnavailable),
        (500, "InternalServiceException", StoreUnavailable),
        (503, "Unknown", StoreUnavailable),
        (400, "AccessDeniedException", TableAccessDenied),
        (400, "UnrecognizedClientException", TableAccessDenied),
        (400, "ValidationException", CatalogRefused),
    ],
    ids=lambda one: one if isinstance(one, str | int) else one.__name__,
)
def test_an_answer_of_glue_passes_or_not(source, status, code, expected):
    with answering(status, code) as url:
        error = told(source, glue(url))
    assert type(error) is expected
    assert "This is why." in str(error)
    assert may_pass(error) is (expected is StoreUnavailable)


def test_a_glue_that_is_away_may_come_back(source, monkeypatch):
    assert may_pass(told(source, glue(f"http://{NOBODY}")))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"):
        monkeypatch.delenv(name, raising=False)
    nobodys = {
        name: value for name, value in glue(f"http://{NOBODY}").items() if "-key" not in name
    }
    error = told(source, nobodys)
    assert (type(error), may_pass(error)) == (TableAccessDenied, False)


def test_a_database_that_cannot_be_opened_or_is_locked_may_pass(source, tmp_path):
    uri = f"sqlite:///{tmp_path / 'nowhere' / 'catalog.db'}"
    error = told(source, {"type": "sql", "uri": uri, "warehouse": tmp_path.as_uri()})
    assert (type(error), may_pass(error)) == (StoreUnavailable, True)
    assert "unable to open database file" in str(error)


def test_a_database_without_a_driver_ends_the_job(source, tmp_path):
    error = told(source, {"type": "sql", "uri": "nothing://db/x", "warehouse": tmp_path.as_uri()})
    assert not may_pass(error)
    assert "nothing" in str(error)


def test_a_metastore_that_is_away_or_has_lost_its_database_may_pass(source):
    assert type(told(source, hive(NOBODY))) is StoreUnavailable
    with metastore(MetaException("no connection to the database")) as address:
        error = told(source, hive(address))
    assert (type(error), may_pass(error)) == (StoreUnavailable, True)
    assert "no connection to the database" in str(error)


def test_what_a_metastore_refuses_for_ever_ends_the_job(source):
    with metastore(RuntimeError("no such call")) as address:  # thrift: an internal error
        error = told(source, hive(address))
    assert (type(error), may_pass(error)) == (CatalogRefused, False)


def test_a_commit_without_an_answer_may_have_happened():
    from botocore.exceptions import ReadTimeoutError
    from sqlalchemy.exc import OperationalError
    from thrift.transport.TTransport import TTransportException

    gone: list[Exception] = [
        ReadTimeoutError(endpoint_url="https://glue"),
        OperationalError("update", {}, Exception("server closed the connection")),
        TTransportException(message="read 0 bytes"),
    ]
    for error in gone:
        with (
            pytest.raises(OutcomeUnknown, match="may have happened") as raised,
            mapped_errors("lake.t", is_commit=True),
        ):
            raise error
        assert may_pass(raised.value)
    with pytest.raises(TableAccessDenied), mapped_errors("lake.t", is_commit=True):
        raise PermissionError(13, "not yours")


@pytest.mark.parametrize("kind", ["rest", "no such"])
def test_what_is_wrong_with_the_properties_is_told(kind):
    with pytest.raises(InvalidConfig):
        open_catalog({"type": kind})


def test_a_password_in_the_url_of_a_catalog_is_not_told():
    with pytest.raises(InvalidConfig, match="from the uri: mysql://db/lake") as refused:
        open_catalog({"uri": "mysql://reader:hunter2@db/lake"})
    assert "hunter2" not in str(refused.value)
    error = ConnectionError("no answer of https://reader:hunter2@catalog/v1/config")
    assert text_of(error) == "no answer of https://catalog/v1/config"
