"""The official Anthropic client: messages, whole, streamed and with tools. Prints what it understood."""

import json
import sys

import anthropic

client = anthropic.Anthropic(base_url=sys.argv[1], api_key="unused", max_retries=0)
ask = dict(max_tokens=9, messages=[{"role": "user", "content": "hi"}])
seen = []

for model in ("words", "tools"):
    whole = client.messages.create(model=model, **ask)
    seen += [whole, *client.messages.create(model=model, stream=True, **ask)]
    with client.messages.stream(model=model, **ask) as stream:
        folded = stream.get_final_message()
    assert [block.model_dump() for block in folded.content] == [block.model_dump() for block in whole.content], folded
    seen.append(folded)

print(json.dumps([one.model_dump(mode="json", warnings=False) for one in seen]))
