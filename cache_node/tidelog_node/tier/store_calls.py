"""Encodes calls of the object store as JSON, between a node and its worker.

    put             key, bytes, id of a key of KMS
    put-once        key, bytes, time limit in seconds
    replace         key, bytes
    put-file        key, path, id of a key of KMS
    get-range       key, start, end            -> bytes
    get-range-into  key, start, end, position  -> size; the bytes are at the position of the memory
    head            key                        -> object
    list            prefix, start after        -> at most LIST_PAGE_KEYS objects
    delete          key, key, ...
    expiry-rules                               -> rules ``[name, prefix, when]``

Bytes of arguments are hexadecimal digits; those of a result follow the message. An object is
``[key, size, modified ms]``.
"""

from __future__ import annotations

from pathlib import Path

from tidelog_core.objects.expiry import expiry_rules
from tidelog_core.objects.one_attempt import put_once
from tidelog_core.objects.store import ObjectStore

from tidelog_node.tier.protocol import Fields, ProtocolError, StoreRequest
from tidelog_node.tier.worker_store import LIST_PAGE_KEYS, pack_object

_NO_MEMORY = memoryview(b"")


async def call_store(
    store: ObjectStore, request: StoreRequest, memory: memoryview = _NO_MEMORY
) -> Fields:
    """Call the store; the answer has ``found`` or ``data``. ``memory`` is shared with the node.

    Raises the method's errors, and ``ProtocolError``.
    """
    found: object = None
    match request.method, request.arguments:
        case "put", (key, data, kms_key_id):
            await store.put(key, bytes.fromhex(data), kms_key_id=kms_key_id)
        case "put-once", (key, data, timeout_s):
            await put_once(store, key, bytes.fromhex(data), timeout_s=float(timeout_s))
        case "replace", (key, data):
            await store.replace(key, bytes.fromhex(data))
        case "put-file", (key, path, kms_key_id):
            await store.put_file(key, Path(path), kms_key_id=kms_key_id)
        case "get-range", (key, start, end):
            return {"data": bytes(await store.get_range(key, start, end))}
        case "get-range-into", (key, start, end, position):
            data = await store.get_range(key, start, end)
            memory[position : position + len(data)] = memoryview(data).cast("B")
            found = len(data)
        case "head", (key,):
            found = pack_object(await store.head(key))
        case "list", (prefix, start_after):
            found = await _page(store, prefix, start_after)
        case "expiry-rules", ():
            found = [[rule.name, rule.prefix, rule.when] for rule in await expiry_rules(store)]
        case "delete", keys:
            await store.delete(keys)
        case method, _:
            raise ProtocolError(f"an unknown call of the store: {method!r}")
    return {"found": found}


async def _page(store: ObjectStore, prefix: str, start_after: str) -> list[list[str | int]]:
    page: list[list[str | int]] = []
    async for found in store.list(prefix, start_after=start_after):
        page.append(pack_object(found))
        if len(page) == LIST_PAGE_KEYS:
            break
    return page
