"""Options of ``tidelog job export`` and ``tidelog job iceberg``, and the requests that they make.

Spark and the packages of tables are imported when a command runs: the command line is parsed
without them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from tidelog_cli.failures import CommandFailed, UsageError
from tidelog_cli.options import parse_settings, require_choice
from tidelog_cli.output import note
from tidelog_cli.redaction import is_secret
from tidelog_cli.stores import StoreLocations

if TYPE_CHECKING:
    from tidelog_spark.jobs.erasure.erasing import EraseRequest
    from tidelog_spark.jobs.export.exporting import ExportRequest
    from tidelog_spark.jobs.values.bucket_schemas import RegistrySchemas
    from tidelog_spark.jobs.values.decoding import DecoderSpec

PARTITIONINGS = ("none", "day", "hour")
VALUE_FORMATS = ("raw", "json", "avro", "protobuf", "registry")
BAD_RECORDS = ("fail", "column")
ISOLATIONS = ("read_committed", "read_uncommitted")
LATEST_NAME = "latest"
CATALOG_FILE_BYTES_MAX = 1 << 20
# The packages, by their names in Python, that formats of tables and values need.
PACKAGES = {
    "delta": "deltalake",
    "iceberg": "pyiceberg",
    "avro": "fastavro",
    "protobuf": "google.protobuf",
    "registry": "fastavro",
}
# pyiceberg reads the properties of the catalog with our name from such variables.
CATALOG_VARIABLES = "PYICEBERG_CATALOG__TIDELOG__"

Catalog = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE",
        help="Property of the Iceberg catalog, as for pyiceberg; may be repeated.",
    ),
]
CatalogFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        envvar="TIDELOG_CATALOG_FILE",
        help="Properties of the catalog, a line NAME=VALUE each: for credentials, which other users"
        " of the machine can read from a command line. Variables such as"
        " PYICEBERG_CATALOG__TIDELOG__CREDENTIAL give them, too.",
        show_default=False,
    ),
]
PartitionBy = Annotated[
    str, typer.Option(help="Partition by none, day or hour of the record's timestamp (UTC).")
]
ValueFormat = Annotated[
    str,
    typer.Option(
        help="raw, json, avro, protobuf, or registry: by the schemas of the registry, which are"
        " read from the bucket."
    ),
]
SchemaFile = Annotated[
    Path | None,
    typer.Option(
        exists=True,
        dir_okay=False,
        help="JSON Schema, Avro schema, or Protobuf's descriptor set.",
    ),
]
Subject = Annotated[
    str | None,
    typer.Option(help="The registry's subject that gives the columns; TOPIC-value by default."),
]
SchemaVersion = Annotated[
    str, typer.Option(help="The version of the subject that gives the columns.")
]
Message = Annotated[str, typer.Option(help="Protobuf's full name of the message.")]
Framing = Annotated[str, typer.Option(help="none, or confluent: a schema id precedes each value.")]
BadRecords = Annotated[
    str, typer.Option(help="fail, or column: keep undecodable values in a column with the reason.")
]
Headers = Annotated[bool, typer.Option("--headers", help="Export headers too.")]
Isolation = Annotated[str, typer.Option(help="Whether to export aborted transactions.")]
SkipLost = Annotated[
    bool,
    typer.Option("--skip-lost", help="Continue if retention deleted records before the export."),
]
ApplyErasures = Annotated[
    bool,
    typer.Option(
        "--apply-erasures", help="Then erase the rows of keys that were erased from the topics."
    ),
]
ExpireSnapshots = Annotated[
    bool,
    typer.Option(
        "--expire-snapshots",
        help="With --apply-erasures: give up older snapshots that still have these rows, and"
        " delete their files.",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordOptions:
    """The options that say which records are exported, and how their values become columns."""

    partition_by: str
    value_format: str
    schema: Path | None
    subject: str | None
    schema_version: str
    message: str
    framing: str
    bad_records: str
    headers: bool
    isolation: str
    skip_lost: bool
    max_offsets: int | None
    tail: bool = False

    def request(self, topics: Sequence[str], locations: StoreLocations) -> ExportRequest:
        """Return the request for an export. Raises ``UsageError``, ``InvalidConfig``."""
        from tidelog_spark.jobs.export.exporting import ExportRequest
        from tidelog_spark.jobs.tables.export_table import TimePartitions

        self._check(topics)
        return ExportRequest(
            metadata=locations.metadata,
            objects=locations.objects,
            topics=tuple(dict.fromkeys(topics)),
            decoder=self._decoder(topics, locations),
            partitions=TimePartitions(self.partition_by),
            include_headers=self.headers,
            keeps_bad_records=self.bad_records == "column",
            is_read_committed=self.isolation == "read_committed",
            fail_on_data_loss=not self.skip_lost,
            offsets_per_partition_max=self.max_offsets,
            include_tail=self.tail,
        )

    def _check(self, topics: Sequence[str]) -> None:
        for name, given, known in (
            ("partition-by", self.partition_by, PARTITIONINGS),
            ("value-format", self.value_format, VALUE_FORMATS),
            ("bad-records", self.bad_records, BAD_RECORDS),
            ("isolation", self.isolation, ISOLATIONS),
        ):
            require_choice(f"--{name}", given, known)
        by_registry = self.value_format == "registry"
        if self.value_format in ("json", "avro", "protobuf") and self.schema is None:
            raise UsageError(
                f"--value-format {self.value_format} needs --schema; for schemas of the registry"
                " give --value-format registry"
            )
        if by_registry and self.schema is not None:
            raise UsageError(
                "--value-format registry reads schemas from the bucket: leave out --schema"
            )
        if not by_registry and (self.subject is not None or self.schema_version != LATEST_NAME):
            raise UsageError("--subject and --schema-version need --value-format registry")
        if by_registry and self.subject is None and len(set(topics)) > 1:
            raise UsageError("the topics' values need one subject for the columns: give --subject")

    def _decoder(self, topics: Sequence[str], locations: StoreLocations) -> DecoderSpec:
        from tidelog_spark.jobs.values.decoding import FRAMINGS, DecoderSpec

        require_choice("--framing", self.framing, FRAMINGS)
        return DecoderSpec(
            format=self.value_format,
            schema=b"" if self.schema is None else self.schema.read_bytes(),
            message=self.message,
            framing=self.framing,
            registry=self._registry(topics, locations),
        )

    def _registry(self, topics: Sequence[str], locations: StoreLocations) -> RegistrySchemas | None:
        if self.value_format != "registry":
            return None
        from tidelog_spark.jobs.values.bucket_schemas import read_schemas

        return read_schemas(
            locations.metadata,
            locations.objects,
            subject=self.subject or f"{topics[0]}-value",
            version=_version(self.schema_version),
        )


def require_packages(extra: str, *formats: str) -> None:
    """Raise ``CommandFailed`` if formats of tables or values need packages that are not there."""
    needed = {"pyarrow", *(PACKAGES[one] for one in formats if one in PACKAGES)}
    missing = sorted(name for name in needed if not _is_there(name))
    if missing:
        raise CommandFailed(f"this needs {' and '.join(missing)}: pip install 'tidelog[{extra}]'")


def _is_there(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # The package that it is in.
        return False


def erase_request(request: ExportRequest, *, expires: bool) -> EraseRequest:
    """Return the request to erase from the table what was erased from the export's topics."""
    from tidelog_spark.jobs.erasure.erasing import EraseRequest

    return EraseRequest(
        metadata=request.metadata, objects=request.objects, topics=request.topics, expires=expires
    )


def catalog_properties(given: Sequence[str], file: Path | None) -> dict[str, str]:
    """Return the properties of the Iceberg catalog; the command line's have precedence.

    Notes those that a command line should not have. Raises ``UsageError``, ``CommandFailed``.
    """
    said = parse_settings("--catalog", given)
    secret = [name for name, value in said.items() if _is_secret(name, value)]
    if secret:
        note(
            f"--catalog {secret[0]}=… can be read by every user of this machine: give it in"
            f" --catalog-file, or in a variable such as {CATALOG_VARIABLES}CREDENTIAL"
        )
    return {**_of_file(file), **said}


def _of_file(file: Path | None) -> dict[str, str]:
    if file is None:
        return {}
    try:
        with file.open("rb") as stream:
            data = stream.read(CATALOG_FILE_BYTES_MAX + 1)
        if len(data) > CATALOG_FILE_BYTES_MAX:
            raise OSError(f"it has more than {CATALOG_FILE_BYTES_MAX} bytes")
        lines = [line.strip() for line in data.decode().splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise CommandFailed(f"--catalog-file {file} cannot be read: {error}") from None
    wanted = [line for line in lines if line and not line.startswith("#")]
    if any("=" not in line for line in wanted):
        # Not the line itself, which may be a secret.
        raise UsageError(f"each line of --catalog-file {file} must be NAME=VALUE")
    return parse_settings("--catalog-file", wanted)


def _is_secret(name: str, value: str) -> bool:
    if is_secret(name) and not value.startswith(("http://", "https://")):
        return True
    return re.match(r"[\w+.-]+://", value) is not None and urlsplit(value).password is not None


def _version(text: str) -> int:
    from tidelog_core.schemas.model import ID_MAX
    from tidelog_spark.jobs.values.bucket_schemas import LATEST

    if text == LATEST_NAME:
        return LATEST
    if not (text.isascii() and text.isdecimal() and 0 < int(text) <= ID_MAX):
        raise UsageError(f"--schema-version {text!r} must be latest, or a version's number")
    return int(text)
