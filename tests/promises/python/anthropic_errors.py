"""The official Anthropic client understands the proxy's own errors, and passes a real answer through."""

import sys

import anthropic

client = anthropic.Anthropic(base_url=sys.argv[1], api_key="unused", max_retries=0)
ask = dict(model="m", max_tokens=5, messages=[{"role": "user", "content": "hi"}])

answer = client.messages.create(**ask)
assert answer.content[0].text == "hello", answer

with client.messages.stream(**ask) as stream:
    assert stream.get_final_text() == "hello"

down = anthropic.Anthropic(base_url=sys.argv[2], api_key="unused", max_retries=0)
try:
    down.messages.create(**ask)
except anthropic.InternalServerError as error:
    assert error.status_code == 502, error
    assert error.body["error"]["type"] == "api_error", error.body
    assert error.body["error"]["code"] == "upstream_refused", error.body
else:
    raise AssertionError("nobody is there to answer")

print("ok")
