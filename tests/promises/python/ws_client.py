"""Speaks WebSocket through Serin: text, binary, pings, and close codes both ways. Prints `ok`."""

import asyncio
import sys

from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed


async def main(url):
    async with connect(url, max_size=None, compression=None) as socket:
        await socket.send("grüß 鸟")
        assert await socket.recv() == "grüß 鸟"
        blob = bytes(range(256)) * 8192
        await socket.send(blob)
        assert await socket.recv() == blob
        await (await socket.ping())
        await socket.send("close")
        try:
            await socket.recv()
            raise AssertionError("the server's close did not arrive")
        except ConnectionClosed as closed:
            assert (closed.rcvd.code, closed.rcvd.reason) == (4001, "because"), closed.rcvd
    async with connect(url) as socket:
        await socket.send("with extensions")
        assert await socket.recv() == "with extensions"
        await socket.close(1000, "done")
    print("ok")


asyncio.run(main(sys.argv[1]))
