"""Reads keys and certificates, PEM text, from files and from AWS Secrets Manager."""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor
from pathlib import Path
from time import monotonic

from tidelog_core.errors import InvalidConfig

FILE_BYTES_MAX = 1_048_576  # a bundle of all public authorities has about 220,000
SECRET_SECONDS = 300.0  # between two calls for a secret: each costs money
SECRET_CALL_SECONDS_MAX = 20.0
ARN_PREFIX = "arn:"


class PemReader:
    """Reads the locations that settings name. For the node's event loop."""

    def __init__(self, executor: Executor) -> None:
        """``executor`` reads files, which may be on a slow disk."""
        self._executor = executor
        self._secrets: dict[str, tuple[float, str]] = {}  # by ARN: when it was read, and the text

    async def read(self, location: str) -> str:
        """Return the text of a file, or of the secret that an ARN names.

        A secret's text may be ``SECRET_SECONDS`` old. Raises ``InvalidConfig`` with the reason.
        """
        if location.startswith(ARN_PREFIX):
            return await self._read_secret(location)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, _read_file, Path(location))

    async def _read_secret(self, arn: str) -> str:
        read_at, text = self._secrets.get(arn, (-SECRET_SECONDS, ""))
        now = monotonic()
        if not text or now - read_at >= SECRET_SECONDS:
            text = await _fetch_secret(arn)
            self._secrets[arn] = now, text
        return text


def _read_file(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise InvalidConfig([f"cannot read {path}: {error.strerror}"]) from error
    if len(data) > FILE_BYTES_MAX:
        raise InvalidConfig([f"{path} is larger than {FILE_BYTES_MAX} bytes: is it PEM text?"])
    return _decoded(data, str(path))


async def _fetch_secret(arn: str) -> str:
    try:  # Only nodes with secrets need this library.
        import aioboto3
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError, ClientError
    except ModuleNotFoundError:
        raise InvalidConfig(
            [f"reading {arn} needs a library: pip install 'tidelog[aws]'"]
        ) from None

    parts = arn.split(":")
    if len(parts) < 7 or parts[2] != "secretsmanager":
        wanted = "arn:aws:secretsmanager:<region>:<account>:secret:<name>"
        raise InvalidConfig([f"{arn} is not the ARN of a secret: {wanted}"])
    config = Config(connect_timeout=5, read_timeout=5, retries={"total_max_attempts": 3})
    try:
        async with (
            asyncio.timeout(SECRET_CALL_SECONDS_MAX),
            aioboto3.Session().client(
                "secretsmanager", region_name=parts[3], config=config
            ) as client,
        ):
            answer = await client.get_secret_value(SecretId=arn)
    except (BotoCoreError, ClientError, OSError, TimeoutError) as error:
        raise InvalidConfig([f"cannot read the secret {arn}: {error or 'no answer'}"]) from error
    text: str | None = answer.get("SecretString")
    return _decoded(answer.get("SecretBinary", b""), arn) if text is None else text


def _decoded(data: bytes, location: str) -> str:
    try:
        return data.decode("ascii")
    except UnicodeDecodeError:
        raise InvalidConfig([f"{location} is not PEM text: convert keystores to PEM"]) from None
