"""A WebSocket server: echoes, and closes with a code of its own when asked to. Prints its port."""

import asyncio

from websockets.asyncio.server import serve
from websockets.exceptions import ConnectionClosed


async def talk(socket):
    try:
        async for message in socket:
            if message == "close":
                await socket.close(4001, "because")
            else:
                await socket.send(message)
    except ConnectionClosed:
        pass


async def main():
    async with serve(talk, "127.0.0.1", 0, max_size=None) as server:
        print(server.sockets[0].getsockname()[1], flush=True)
        await server.serve_forever()


asyncio.run(main())
