"""Leaves as the official clients leave: a cancelled task before the first byte, a closed stream in the middle."""

import asyncio
import sys

import anthropic
import openai

base, api, phase = sys.argv[1:4]
openai_client = openai.AsyncOpenAI(base_url=f"{base}/v1", api_key="unused", max_retries=0)
anthropic_client = anthropic.AsyncAnthropic(base_url=base, api_key="unused", max_retries=0)
messages = [{"role": "user", "content": "hi"}]
create = {
    "chat": lambda **ask: openai_client.chat.completions.create(messages=messages, **ask),
    "responses": lambda **ask: openai_client.responses.create(input="hi", **ask),
    "messages": lambda **ask: anthropic_client.messages.create(messages=messages, max_tokens=9, **ask),
}[api]


async def main():
    loop = asyncio.get_running_loop()
    if phase == "stream":
        stream = await create(model="endless", stream=True)
        async for _ in stream:
            break
        await stream.close()
    else:
        task = asyncio.create_task(create(model="silent", stream=phase == "silent"))
        await loop.run_in_executor(None, sys.stdin.readline)  # the test says when the upstream has the request
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    print("ok", flush=True)
    # The process stays until the test has seen the cancel: its end would close the connection too.
    await loop.run_in_executor(None, sys.stdin.read)


asyncio.run(main())
