"""Names of options that clients do not have, and what is to be given instead.

Other clients have other names for the same options. These are Kafka's, as kafka-python and aiokafka
write them; confluent-kafka has them with dots.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping

_OTHERS: Mapping[str, str] = {
    "batch_size": "batch_size_bytes",
    "buffer_memory": "buffer_memory_bytes",
    "client_rack": "rack",
    "compression_type": "compression",
    "consumer_timeout_ms": "poll(timeout_ms=…)",
    "default_api_timeout_ms": "request_timeout_ms, and timeout_ms of Admin",
    "fetch_wait_max_ms": "fetch_max_wait_ms",
    "key_deserializer": "keys are bytes: decode them",
    "key_serializer": "keys are bytes: encode them",
    "max_in_flight_requests_per_connection": "max_in_flight",
    "max_request_size": "request_size_bytes_max",
    "message_timeout_ms": "delivery_timeout_ms",
    "partition_assignment_strategy": "assignors",
    "queue_buffering_max_ms": "linger_ms",
    "rebalance_timeout_ms": "max_poll_interval_ms",
    "sasl_mechanism": "sasl=Sasl(…)",
    "sasl_oauth_token_provider": "sasl=SaslToken(…)",
    "sasl_plain_password": "sasl=Sasl(…)",
    "sasl_plain_username": "sasl=Sasl(…)",
    "security_protocol": "ssl=ssl.create_default_context(), sasl=Sasl(…)",
    "socket_timeout_ms": "request_timeout_ms",
    "ssl_cafile": "ssl=ssl.create_default_context(cafile=…)",
    "ssl_context": "ssl",
    "value_deserializer": "values are bytes: decode them",
    "value_serializer": "values are bytes: encode them",
}


def check_names(given: Iterable[str], settings: Iterable[str], of: Callable[..., object]) -> None:
    """Raise ``TypeError`` for the first name that is not among the settings, as Python does.

    ``of`` is what was called: the names of its own arguments are looked at too.
    """
    known = {*settings, *inspect.signature(of).parameters} - {"settings"}
    for name in given:
        if name in known:
            continue
        written = name.replace(".", "_").replace("-", "_")
        near = difflib.get_close_matches(written, sorted(known), n=1)
        instead = _OTHERS.get(written) or (written if written in known else "".join(near))
        hint = f"; here it is: {instead}" if instead else ""
        raise TypeError(f"{of.__name__} has no option {name!r}{hint}")
