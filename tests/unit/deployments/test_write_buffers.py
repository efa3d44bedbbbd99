"""A server whose reader stops is held up after little more than its buffers."""

from __future__ import annotations

import subprocess
import sys

# In a process of its own: the bound is for good. Prints how much was written to a connection that
# nobody reads until the next write waited, and what a reader got then.
PROGRAM = """
import asyncio, json, socket
import uvicorn
from deployments.write_buffers import bound_write_buffers

bound_write_buffers()
bound_write_buffers()
TOTAL, written, at = 6 * 2**20, 0, 0.0

async def app(scope, receive, send):
    global written, at
    await send({"type": "http.response.start", "status": 200, "headers": []})
    while written < TOTAL:
        await send({"type": "http.response.body", "body": b"x" * 256, "more_body": True})
        written, at = written + 256, asyncio.get_running_loop().time()
    await send({"type": "http.response.body"})

async def main():
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, lifespan="off", log_level="error"))
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    while not server.started:
        await asyncio.sleep(0.01)
    loop = asyncio.get_running_loop()
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.setblocking(False)
    await loop.sock_connect(client, listening.getsockname())
    request = b"GET / HTTP/1.1\\r\\nhost: x\\r\\nconnection: close\\r\\n\\r\\n"
    await loop.sock_sendall(client, request)
    while not written or (written < TOTAL and loop.time() - at < 1.0):
        await asyncio.sleep(0.05)
    held, read = written, 0
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**20)  # fast from here on
    while part := await loop.sock_recv(client, 2**20):
        read += part.count(b"x")
    print(json.dumps([held, read == TOTAL]))
    server.should_exit = True
    await serving

asyncio.run(main())
"""


def test_a_stopped_reader_is_felt_after_a_few_hundred_kilobytes():
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.returncode == 0, ran.stderr
    held, is_whole = ran.stdout.strip().strip("[]").split(", ")
    assert int(held) < 2**19
    assert is_whole == "true"
