"""A program whose requests to S3 are open at its end ends in silence."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

SECONDS_MAX = 60.0
PROGRAM = """
import asyncio, atexit, sys, threading
from tidelog_core.objects import obstore_requests
from tidelog_core.objects.location import open_object_store

def tell():
    print("has open requests:", obstore_requests._give_up())

atexit.register(tell)  # It runs last.
begun = threading.Event()

async def read(number):
    store = open_object_store("s3://bucket/prefix")
    await store.get_range(f"key-{number}", 0, 10)

async def main(is_cancelled):
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(read(number)) for number in range(3)]
        while len(obstore_requests._requests) < 3:
            await asyncio.sleep(0.001)
        begun.set()
        for task in tasks:
            if is_cancelled:
                task.cancel()

if sys.argv[1] == "cancelled":
    asyncio.run(main(is_cancelled=True))
else:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    asyncio.run_coroutine_threadsafe(main(is_cancelled=False), loop)
    begun.wait()
print("ends")
"""


@pytest.mark.parametrize("how", ["cancelled", "open"])
def test_a_program_ends_without_a_panic_of_obstore(how: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # It takes requests, and never answers.
        ended = subprocess.run(
            [sys.executable, "-c", PROGRAM, how],
            env={
                **os.environ,
                "AWS_ENDPOINT_URL": f"http://127.0.0.1:{silent.getsockname()[1]}",
                "AWS_ALLOW_HTTP": "true",
                "AWS_ACCESS_KEY_ID": "key",
                "AWS_SECRET_ACCESS_KEY": "secret",
                "AWS_REGION": "us-east-1",
            },
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=True,
        )
    assert (ended.stdout, ended.stderr) == ("ends\nhas open requests: False\n", "")
