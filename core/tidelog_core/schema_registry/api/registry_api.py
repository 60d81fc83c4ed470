"""The REST API of the schema registry: paths, options, answers and error codes of Confluent's.

    answer = await api.answer(Call("GET", "/subjects"))

Nothing here knows sockets: a node's HTTP server and a function call it alike. Source: the resources
of Confluent's Schema Registry 8.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

from tidelog_core.errors import OutcomeUnknown, TidelogError
from tidelog_core.metadata.schema_records import SchemaSubject
from tidelog_core.schema_registry.api.audited_changes import Change, Unchanged, change_of
from tidelog_core.schema_registry.api.calls import (
    V1_JSON,
    Answer,
    Call,
    Handle,
    Options,
    Right,
    forbidden,
    parse_version,
    parse_wanted,
)
from tidelog_core.schema_registry.api.ids_api import IdsApi
from tidelog_core.schema_registry.api.schema_answers import version_answer
from tidelog_core.schema_registry.api.schema_pages import ListedVersion, SchemaPages
from tidelog_core.schema_registry.api.settings_api import SettingsApi
from tidelog_core.schema_registry.api.unreadable_items import UnreadableItems
from tidelog_core.schema_registry.deletion import SchemaDeletion
from tidelog_core.schema_registry.registration import ANY_ID
from tidelog_core.schema_registry.registry import SchemaRegistry, Wanted
from tidelog_core.schemas.languages import supported_types
from tidelog_core.schemas.model import SUBJECT_BYTES_MAX
from tidelog_core.schemas.refusals import (
    INVALID_SCHEMA,
    STORE_ERROR,
    TIMEOUT_ERROR,
    RegistryRefusal,
    invalid_subject,
    subject_not_found,
)
from tidelog_core.schemas.subject_names import DEFAULT_CONTEXT, EVERY_CONTEXT, SubjectName

logger = logging.getLogger(__name__)

NOT_FOUND = RegistryRefusal(404, "HTTP 404 Not Found")
NOT_ALLOWED = RegistryRefusal(405, "HTTP 405 Method Not Allowed")
# The part of a path behind one of these is a name.
_NAMED_AFTER = frozenset({"subjects", "versions", "ids", "guids", "config", "mode"})
RETRY = "The store's answer was lost: try again, which is safe."


class RegistryApi:
    """Answers calls. For the tasks of one event loop."""

    def __init__(self, registry: SchemaRegistry, *, cluster_id: str, version: str) -> None:
        self._registry = registry
        self._deletion = SchemaDeletion(registry)
        self._cluster_id = cluster_id
        self._version = version
        self._unreadable = UnreadableItems()
        self._pages = SchemaPages(registry, self._unreadable)
        settings, ids = SettingsApi(registry, require), IdsApi(registry, require)
        self._routes: dict[tuple[str, ...], dict[str, Handle]] = {
            (): {"GET": self._root},
            ("subjects",): {"GET": self._subjects},
            ("subjects", "*"): {"POST": self._look_up, "DELETE": self._delete_subject},
            ("subjects", "*", "metadata"): {"GET": self._latest_with},
            ("subjects", "*", "versions"): {"GET": self._versions, "POST": self._register},
            ("subjects", "*", "versions", "*"): {
                "GET": self._get_version,
                "DELETE": self._delete_version,
            },
            ("subjects", "*", "versions", "*", "schema"): {"GET": self._version_text},
            ("subjects", "*", "versions", "*", "referencedby"): {"GET": self._referenced_by},
            ("schemas",): {"GET": self._schemas},
            ("schemas", "types"): {"GET": self._types},
            ("compatibility", "subjects", "*", "versions"): {"POST": self._check_all},
            ("compatibility", "subjects", "*", "versions", "*"): {"POST": self._check_one},
            ("contexts",): {"GET": self._contexts},
            ("v1", "metadata", "deployment"): {"GET": self._metadata_deployment},
            ("v1", "metadata", "id"): {"GET": self._metadata_id},
            ("v1", "metadata", "version"): {"GET": self._metadata_version},
            **settings.routes(),
            **ids.routes(),
        }

    async def answer(self, call: Call) -> Answer:
        """Return the answer to a call. Raises nothing that a request can cause."""
        content_type = V1_JSON
        try:
            content_type = call.answer_type()
            handle = self._route(call)
            options, path = call.options(), call.segments
            _require_short([*path, *options.values.values()])
            value = await handle(call, options, path)
            change = change_of(call.method, path, options.values, value, 0)
            return replace(Answer.of(value, content_type), change=change)
        except RegistryRefusal as refusal:
            return _refused(call, refusal.error_code, str(refusal), content_type)
        except OutcomeUnknown:
            return _refused(call, TIMEOUT_ERROR, RETRY, content_type)
        except TidelogError as error:
            logger.warning("schema registry cannot use its store", extra={"reason": str(error)})
            return _refused(call, STORE_ERROR, f"Error from the store: {error}", content_type)

    def _route(self, call: Call) -> Handle:
        segments = call.segments
        methods = self._routes.get(_pattern(segments))
        if methods is None:
            raise NOT_FOUND
        handle = methods.get("GET" if call.method == "HEAD" else call.method)
        if handle is None:
            raise NOT_ALLOWED
        return handle

    async def _root(self, call: Call, options: Options, path: list[str]) -> object:
        del call, options, path
        return {}

    # -- subjects --------------------------------------------------------------------------

    async def _subjects(self, call: Call, options: Options, path: list[str]) -> object:
        del path
        prefix = options.text("subjectPrefix", EVERY_CONTEXT)
        only_deleted = _is_only_deleted(options)
        with_deleted = options.is_set("deleted") or only_deleted
        found = []
        for one in await self._readable_subjects(prefix):
            is_live = bool(one.live)
            is_wanted = not is_live if only_deleted else is_live or with_deleted
            if is_wanted and one.versions and call.permissions.sees(Right.READ, one.subject):
                found.append(one.subject)
        return options.page(found)

    async def _readable_subjects(self, prefix: str) -> list[SchemaSubject]:
        """Return the subjects with a prefix; malformed ones are left out and logged."""
        found, malformed = await self._registry.read.subjects(_stored_prefix(prefix))
        for error in malformed:
            self._unreadable.report(error)
        return [one for one in found if _has_prefix(one.subject, prefix)]

    async def _look_up(self, call: Call, options: Options, path: list[str]) -> object:
        require(call, Right.READ, path[1])
        found = await self._registry.look_up(
            path[1],
            _parse_readable(call, path[1]).schema,
            normalize=options.is_set("normalize"),
            with_deleted=options.is_set("deleted"),
        )
        return await version_answer(self._registry, found, options)

    async def _latest_with(self, call: Call, options: Options, path: list[str]) -> object:
        require(call, Right.READ, path[1])
        keys, values = options.repeated.get("key", ()), options.repeated.get("value", ())
        found = await self._registry.latest_with(
            path[1],
            dict(zip(keys, values, strict=False)),  # what has no partner does not count
            with_deleted=options.is_set("deleted"),
        )
        return await version_answer(self._registry, found, options)

    async def _delete_subject(self, call: Call, options: Options, path: list[str]) -> object:
        require(call, Right.DELETE, path[1])
        is_permanent = options.is_set("permanent")
        return await self._deletion.delete_subject(path[1], is_permanent=is_permanent)

    async def _versions(self, call: Call, options: Options, path: list[str]) -> object:
        require(call, Right.READ, path[1])
        name = SubjectName.parse(path[1])
        subject = await self._registry.read.subject(name)
        only_deleted = _is_only_deleted(options)
        if not (subject.versions if only_deleted or options.is_set("deleted") else subject.live):
            raise subject_not_found(name.text)
        if options.is_set("deletedAsNegative"):
            signed = [-one.version if one.is_deleted else one.version for one in subject.versions]
            return options.page(signed)
        versions = subject.versions if options.is_set("deleted") else subject.live
        if only_deleted:
            versions = tuple(one for one in subject.versions if one.is_deleted)
        return options.page([one.version for one in versions])

    async def _register(self, call: Call, options: Options, path: list[str]) -> object:
        require(call, Right.WRITE, path[1])
        wanted = _parse_readable(call, path[1])
        if wanted.schema_id != ANY_ID:
            require(call, Right.WRITE, "")  # Ids are those of all subjects of a context.
        found = await self._registry.register(
            path[1],
            wanted,
            normalize=options.is_set("normalize"),
            force=options.is_set("force"),
        )
        answered = await version_answer(self._registry, found, options)
        del answered["subject"]
        return answered if found.is_new else Unchanged(answered)

    async def _get_version(self, call: Call, options: Options, path: list[str]) -> object:
        require(call, Right.READ, path[1])
        found = await self._registry.version(
            path[1], parse_version(path[3]), with_deleted=options.is_set("deleted")
        )
        return await version_answer(self._registry, found, options)

    async def _version_text(self, call: Call, options: Options, path: list[str]) -> object:
        found: Any = await self._get_version(call, options, path)
        return found["schema"].encode(errors="replace")

    async def _referenced_by(self, call: Call, options: Options, path: list[str]) -> object:
        require(call, Right.READ, path[1])
        found = await self._registry.referrers(
            path[1], parse_version(path[3]), with_deleted=options.is_set("deleted")
        )
        return options.page(found)

    async def _delete_version(self, call: Call, options: Options, path: list[str]) -> object:
        require(call, Right.DELETE, path[1])
        return await self._deletion.delete_version(
            path[1], parse_version(path[3]), is_permanent=options.is_set("permanent")
        )

    # -- schemas ---------------------------------------------------------------------------

    async def _schemas(self, call: Call, options: Options, path: list[str]) -> object:
        del path
        prefix = options.text("subjectPrefix", EVERY_CONTEXT) or EVERY_CONTEXT
        versions: list[ListedVersion] = []
        for subject in await self._readable_subjects(prefix):
            if not call.permissions.sees(Right.READ, subject.subject):
                continue
            wanted = subject.versions if options.is_set("deleted") else subject.live
            wanted = wanted[-1:] if options.is_set("latestOnly") else wanted
            versions += [(subject.subject, one) for one in wanted]
        return await self._pages.page(versions, options)

    async def _types(self, call: Call, options: Options, path: list[str]) -> object:
        del call, options, path
        return [one.value for one in supported_types()]

    # -- compatibility, and the registry itself --------------------------------------------

    async def _check_all(self, call: Call, options: Options, path: list[str]) -> object:
        return await self._check(call, options, path[2], None)

    async def _check_one(self, call: Call, options: Options, path: list[str]) -> object:
        return await self._check(call, options, path[2], parse_version(path[4]))

    async def _check(
        self, call: Call, options: Options, subject: str, version: int | None
    ) -> object:
        require(call, Right.READ, subject)
        is_verbose = options.is_set("verbose")
        schema = _parse_readable(call, subject).schema
        try:
            messages = await self._registry.compatibility.problems(
                subject, schema, version, normalize=options.is_set("normalize")
            )
        except RegistryRefusal as refusal:
            if not is_verbose or refusal.error_code != INVALID_SCHEMA:
                raise
            messages = [str(refusal)]
        answered: dict[str, object] = {"is_compatible": not messages}
        if is_verbose:
            answered["messages"] = messages
        return answered

    async def _contexts(self, call: Call, options: Options, path: list[str]) -> object:
        del path
        prefix = options.text("contextPrefix")
        found = await self._registry.read.contexts()
        if not call.permissions.sees(Right.READ, ""):
            subjects = await self._registry.read.subject_names()
            seen = [one for one in subjects if call.permissions.sees(Right.READ, one)]
            known = {DEFAULT_CONTEXT, *(SubjectName.parse(one).context for one in seen)}
            found = [one for one in found if one in known]
        return options.page([one for one in found if one.startswith(prefix)])

    async def _metadata_id(self, call: Call, options: Options, path: list[str]) -> object:
        del call, options, path
        clusters = {
            "kafka-cluster": self._cluster_id,
            "schema-registry-cluster": "schema-registry",
        }
        return {"scope": {"path": [], "clusters": clusters}}

    async def _metadata_deployment(self, call: Call, options: Options, path: list[str]) -> object:
        del call, options, path
        return {"attributes": []}

    async def _metadata_version(self, call: Call, options: Options, path: list[str]) -> object:
        del call, options, path
        return {"version": self._version, "commitId": ""}


def _is_only_deleted(options: Options) -> bool:
    """Return whether only deleted versions are wanted; confluent-kafka for Python says it so."""
    return options.is_set("deletedOnly") or options.is_set("deleted_only")


def interrupted(call: Call) -> Change | None:
    """Return the change of a call that ended before its answer: it may still be made."""
    return _refused(call, TIMEOUT_ERROR, RETRY, V1_JSON).change


def _refused(call: Call, error_code: int, message: str, content_type: str) -> Answer:
    try:
        options = call.options().values
    except RegistryRefusal:
        options = {}
    change = change_of(call.method, call.segments, options, None, error_code)
    return replace(Answer.refused(error_code, message, content_type), change=change)


def require(call: Call, right: Right, subject: str) -> None:
    """Raise ``RegistryRefusal`` unless the caller has the right; "": to everything."""
    if not call.permissions.may(right, subject):
        raise forbidden(right, f"Subject: {subject}" if subject else "the registry")


def _parse_readable(call: Call, subject: str) -> Wanted:
    """Return the schema of a request's body. Raises ``RegistryRefusal``.

    Also if the caller may not read what it refers to: the answer could tell of that.
    """
    wanted = parse_wanted(call.json())
    for one in wanted.schema.references:
        require(call, Right.READ, SubjectName.parse(subject).reference(one.subject).text)
    return wanted


def _require_short(texts: list[str]) -> None:
    """Raise ``RegistryRefusal`` for a name that the store could not have as a key."""
    for text in texts:
        if len(text.encode(errors="replace")) > SUBJECT_BYTES_MAX:
            raise invalid_subject(f"{text[:50]}…")


def _pattern(segments: list[str]) -> tuple[str, ...]:
    """Return a path with ``*`` for names: every part after one that has names after it."""
    pattern: list[str] = []
    for one in segments:
        is_name = bool(pattern) and pattern[-1] in _NAMED_AFTER
        pattern.append("*" if is_name else one)
    return tuple(pattern)


def _stored_prefix(prefix: str) -> str:
    """Return how the stored names of subjects with a prefix begin."""
    return "" if prefix.startswith(EVERY_CONTEXT) else prefix


def _has_prefix(subject: str, prefix: str) -> bool:
    """Return whether a subject is among those that a prefix asks for."""
    wanted, found = SubjectName.parse(prefix), SubjectName.parse(subject)
    is_of_context = prefix.startswith(EVERY_CONTEXT) or found.context == wanted.context
    return is_of_context and found.subject.startswith(wanted.subject)
