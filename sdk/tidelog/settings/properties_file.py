"""Files of ``name=value`` lines, as Kafka's tools and librdkafka read them.

security.protocol=SASL_SSL
ssl.truststore.location=/etc/tidelog/authority.pem
sasl.mechanism=SCRAM-SHA-512
sasl.username=alice
sasl.password=…
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tidelog.errors import InvalidConfig
from tidelog.settings.given import Given

SIZE_BYTES_MAX = 1_048_576


def read_properties(path: Path) -> dict[str, str]:
    """Return the settings of a file. Raises ``InvalidConfig`` if it cannot be read."""
    return {name: given.value for name, given in read_given(path).items()}


def read_given(path: Path) -> dict[str, Given]:
    """Return the settings with their lines; ``#`` and ``!`` begin comments.

    A backslash at the end continues a line. Raises ``InvalidConfig`` with every wrong line.
    """
    settings: dict[str, Given] = {}
    problems = []
    for number, text in _logical_lines(read_text(path)):
        if not text or text[0] in "#!":
            continue
        name, equals, value = text.partition("=")
        place = f"{path}, line {number}"
        if not equals or not name.strip():
            problems.append(f"{place}: it must be name=value")
        settings[name.strip()] = Given(value.strip(), place)
    if problems:
        raise InvalidConfig(problems)
    return settings


def read_text(path: Path) -> str:
    """Return a settings file's text. Raises ``InvalidConfig``."""
    try:
        with path.open("rb") as file:
            data = file.read(SIZE_BYTES_MAX + 1)
        text = data.decode()
    except OSError as error:
        raise InvalidConfig([f"cannot read {path}: {error.strerror}"]) from None
    except UnicodeDecodeError as error:
        raise InvalidConfig([f"cannot read {path}: {error}"]) from None
    if len(data) > SIZE_BYTES_MAX:
        raise InvalidConfig([f"{path} has more than {SIZE_BYTES_MAX} bytes"])
    return text


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Return each line and its number; a continued one has that of its first."""
    begun: tuple[int, str] | None = None
    for number, line in enumerate(text.splitlines(), 1):
        first, before = begun or (number, "")
        part = before + line.strip()
        is_comment = part[:1] in {"#", "!"}
        if not is_comment and (len(part) - len(part.rstrip("\\"))) % 2:
            begun = first, part[:-1]
            continue
        begun = None
        yield first, part
    if begun is not None:
        yield begun
