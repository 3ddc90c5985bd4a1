"""A bare ASGI application, to be served by uvicorn: it says what it saw of its clients at /seen."""

import json

SEEN = []


async def read(receive):
    body = b""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        if not message.get("more_body"):
            return body


async def start(send, status=200, kind=b"application/json", *more):
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", kind), *more]})


async def whole(send, body):
    await start(send)
    await send({"type": "http.response.body", "body": body})


async def until_gone(receive):
    while (await receive())["type"] != "http.disconnect":
        pass


async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        while (await receive())["type"] != "lifespan.shutdown":
            await send({"type": "lifespan.startup.complete"})
        return await send({"type": "lifespan.shutdown.complete"})
    path = scope["path"]
    if path == "/seen":
        return await whole(send, json.dumps(SEEN).encode())
    SEEN.append(f"came {path}")
    body = await read(receive)
    if path == "/silent":
        await until_gone(receive)
    elif path == "/endless":
        await start(send, 200, b"text/event-stream", (b"x-accel-buffering", b"no"))
        await send({"type": "http.response.body", "body": b"data: 1\n\n", "more_body": True})
        await until_gone(receive)
    elif path == "/stream":
        await start(send, 200, b"text/event-stream")
        for number in range(200):
            await send({"type": "http.response.body", "body": b"data: %d\n\n" % number, "more_body": True})
        return await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})
    elif path == "/port":
        return await whole(send, str(scope["client"][1]).encode())
    else:
        return await whole(send, body if body is not None else b"")
    SEEN.append(f"gone {path}")
