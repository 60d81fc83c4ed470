"""The registry's refusals: Confluent's error codes and messages.

The first three digits of a code are the HTTP status. Source: Confluent's ``Errors``.
"""

from __future__ import annotations

from tidelog_core.errors import ErrorCode, TidelogError
from tidelog_core.schemas.model import GIVEN_MAX

STORE_ERROR = 50001
TIMEOUT_ERROR = 50002
INVALID_SCHEMA = 42201
_INVALID_SCHEMA_BEGIN = "Invalid schema, details: "


class RegistryRefusal(TidelogError):
    """The registry refuses a request; ``error_code`` says why."""

    code = ErrorCode.invalid_request

    def __init__(self, error_code: int, message: str) -> None:
        super().__init__(message)
        self.error_code = error_code

    @property
    def status(self) -> int:
        """The HTTP status."""
        return int(str(self.error_code)[:3])


def subject_not_found(subject: str) -> RegistryRefusal:
    """Return the refusal of a subject without versions."""
    return RegistryRefusal(40401, f"Subject '{subject}' not found.")


def version_not_found(version: int) -> RegistryRefusal:
    """Return the refusal of a version that the subject does not have."""
    return RegistryRefusal(40402, f"Version {version} not found.")


def schema_not_found(schema_id: int | str | None = None) -> RegistryRefusal:
    """Return the refusal of a schema, or of an id, that is not registered."""
    which = "" if schema_id is None else f" {schema_id}"
    return RegistryRefusal(40403, f"Schema{which} not found")


def subject_soft_deleted(subject: str) -> RegistryRefusal:
    """Return the refusal to delete a subject once more."""
    text = f"Subject '{subject}' was soft deleted.Set permanent=true to delete permanently"
    return RegistryRefusal(40404, text)


def subject_not_soft_deleted(subject: str) -> RegistryRefusal:
    """Return the refusal to delete a subject permanently at once."""
    text = f"Subject '{subject}' was not deleted first before being permanently deleted"
    return RegistryRefusal(40405, text)


def version_soft_deleted(subject: str, version: int) -> RegistryRefusal:
    """Return the refusal to delete a version once more."""
    text = f"Subject '{subject}' Version {version} was soft deleted."
    return RegistryRefusal(40406, f"{text}Set permanent=true to delete permanently")


def version_not_soft_deleted(subject: str, version: int) -> RegistryRefusal:
    """Return the refusal to delete a version permanently at once."""
    text = f"Subject '{subject}' Version {version} was not deleted first"
    return RegistryRefusal(40407, f"{text} before being permanently deleted")


def no_own_compatibility(subject: str) -> RegistryRefusal:
    """Return the answer about a subject without settings of its own."""
    text = f"Subject '{subject}' does not have subject-level compatibility configured"
    return RegistryRefusal(40408, text)


def no_own_mode(subject: str) -> RegistryRefusal:
    """Return the answer about a subject without a mode of its own."""
    text = f"Subject '{subject}' does not have subject-level mode configured"
    return RegistryRefusal(40409, text)


def incompatible(subject: str, problems: list[str]) -> RegistryRefusal:
    """Return the refusal of a schema that is incompatible with older versions."""
    details = "[" + ", ".join(problems) + "]"
    text = "Schema being registered is incompatible with an earlier schema for subject"
    return RegistryRefusal(40901, f'{text} "{subject}", details: {details}')


def invalid_schema(reason: str) -> RegistryRefusal:
    """Return the refusal of a text that is no schema."""
    return RegistryRefusal(INVALID_SCHEMA, f"{_INVALID_SCHEMA_BEGIN}{reason}")


class ReferenceNotFound(RegistryRefusal):
    """A schema refers to a version that is not there."""

    def __init__(self, subject: str, version: int) -> None:
        self.reason = f"No schema reference found for subject {subject!r} and version {version}"
        super().__init__(INVALID_SCHEMA, f"{_INVALID_SCHEMA_BEGIN}{self.reason}")


def invalid_version(version: str) -> RegistryRefusal:
    """Return the refusal of a version that there cannot be."""
    text = f"The specified version '{version}' is not a valid version id. "
    return RegistryRefusal(
        42202, f'{text}Allowed values are between [1, 2^31-1] and the string "latest"'
    )


def invalid_compatibility() -> RegistryRefusal:
    """Return the refusal of an unknown compatibility level."""
    text = "Invalid compatibility level. Valid values are none, backward, forward, full, "
    return RegistryRefusal(
        42203, f"{text}backward_transitive, forward_transitive, and full_transitive"
    )


def invalid_mode() -> RegistryRefusal:
    """Return the refusal of an unknown mode."""
    return RegistryRefusal(
        42204, "Invalid mode. Valid values are READWRITE, READONLY, READONLY_OVERRIDE and IMPORT."
    )


def not_permitted(reason: str) -> RegistryRefusal:
    """Return the refusal of a call that the mode does not allow."""
    return RegistryRefusal(42205, reason)


def given_too_high(what: str, number: int) -> RegistryRefusal:
    """Return the refusal of an id or a version after which there would be too few."""
    return not_permitted(
        f"the {what} {number} must be from 1 to {GIVEN_MAX}: give a lower one, so that the registry"
        " can give out further ones"
    )


def reference_exists(subject: str, version: int) -> RegistryRefusal:
    """Return the refusal to delete a version that other schemas use."""
    key = f"{{magic=1,keytype=SCHEMA,subject={subject},version={version}}}"
    return RegistryRefusal(42206, f"One or more references exist to the schema {key}.")


def invalid_subject(subject: str) -> RegistryRefusal:
    """Return the refusal of a name that no subject can have."""
    return RegistryRefusal(42208, f"The specified subject '{subject}' is not a valid.")


def schema_too_large(reason: str) -> RegistryRefusal:
    """Return the refusal of more than the registry keeps."""
    return RegistryRefusal(
        42209, f"Register operation failed because schema is too large: {reason}"
    )
