"""One session of librdkafka: ``python -m tests.chaos.librdkafka``, by ``processes`` only.

confluent-kafka holds the interpreter's lock in some of its calls while a thread of
librdkafka waits for it: then nothing of the process runs any more. SIGUSR1 has it say where
that is, for which it needs no lock.
"""

from __future__ import annotations

import faulthandler
import os
import signal

from tests.chaos.librdkafka.consuming import consume
from tests.chaos.librdkafka.link import open_link, own_end, read_order
from tests.chaos.librdkafka.producing import produce
from tests.chaos.librdkafka.transacting import process, write_transactions

ROLES = {
    "produce": produce,
    "consume": consume,
    "write_transactions": write_transactions,
    "process": process,
}


def main() -> None:
    """Do what the first line says."""
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    link, lines = own_end()
    order = read_order(lines)
    scene = open_link(order, link, lines)
    ROLES[order.role](scene, link, order)
    os._exit(0)  # Its threads may hang as well when they are taken down.


if __name__ == "__main__":
    main()
