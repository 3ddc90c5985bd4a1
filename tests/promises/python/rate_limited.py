"""The official OpenAI client knows a refusal by the proxy's limits for what it is, and comes back when it was told to."""

import sys

import openai

ask = dict(model="m", max_tokens=5, messages=[{"role": "user", "content": "hi"}])
client = openai.OpenAI(base_url=sys.argv[1], api_key="one", max_retries=0)

for _ in range(2):
    assert client.chat.completions.create(**ask).choices[0].message.content == "hello"
try:
    client.chat.completions.create(**ask)
except openai.RateLimitError as error:
    assert error.status_code == 429, error
    assert error.code == "rate_limit_exceeded", error.body
    assert int(error.response.headers["retry-after"]) == 1, error.response.headers
else:
    raise AssertionError("the third request in one second should have been refused")

patient = openai.OpenAI(base_url=sys.argv[1], api_key="one", max_retries=2)
assert patient.chat.completions.create(**ask).choices[0].message.content == "hello"

other = openai.OpenAI(base_url=sys.argv[1], api_key="two", max_retries=0)
assert other.chat.completions.create(**ask).choices[0].message.content == "hello"
print("ok")
