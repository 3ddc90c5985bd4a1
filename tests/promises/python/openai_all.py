"""The official OpenAI client: chats and responses, whole, streamed and with tools. Prints what it understood."""

import json
import sys

import openai

client = openai.OpenAI(base_url=f"{sys.argv[1]}/v1", api_key="unused", max_retries=0)
messages = [{"role": "user", "content": "hi"}]
seen = []

for model in ("words", "tools"):
    seen.append(client.chat.completions.create(model=model, messages=messages))
    seen += client.chat.completions.create(model=model, messages=messages, stream=True,
                                           stream_options={"include_usage": True})
    seen.append(client.responses.create(model=model, input="hi"))
    seen += client.responses.create(model=model, input="hi", stream=True)

print(json.dumps([one.model_dump(mode="json", warnings=False) for one in seen]))
