"""A three-turn chat through the official client: whole, streamed, and with an error it must understand."""

import sys

import openai

client = openai.OpenAI(base_url=sys.argv[1], api_key="unused", max_retries=0)
STEM = "Finish this sentence exactly as it was given: The tag of locker Q7 is"
messages = [
    {"role": "user", "content": "Please note this down. The tag of locker Q7 is amber-river-4821-k. Just say OK."},
]

assert "serin-reference" in [model.id for model in client.models.list()]

first = client.chat.completions.create(model="serin-reference", messages=messages, max_tokens=5, temperature=0)
assert first.usage.prompt_tokens > 10, first
messages += [{"role": "assistant", "content": first.choices[0].message.content}, {"role": "user", "content": STEM}]

second = client.chat.completions.create(model="serin-reference", messages=messages, max_tokens=40, temperature=0)
assert "amber-river-4821-k" in second.choices[0].message.content, second
assert second.choices[0].finish_reason == "stop", second
messages += [{"role": "assistant", "content": second.choices[0].message.content}, {"role": "user", "content": STEM}]

text, usage = "", None
stream = client.chat.completions.create(
    model="serin-reference", messages=messages, max_tokens=40, temperature=0.6, seed=1, stream=True,
    stream_options={"include_usage": True},
)
for chunk in stream:
    if chunk.choices:
        text += chunk.choices[0].delta.content or ""
    usage = chunk.usage or usage
assert "amber-river-4821-k" in text, text
assert usage.prompt_tokens > second.usage.prompt_tokens, usage

try:
    client.chat.completions.create(model="serin-reference", messages=messages, n=3)
except openai.BadRequestError as error:
    assert error.code == "invalid_request", error
else:
    raise AssertionError("n=3 must be refused")

print("ok")
