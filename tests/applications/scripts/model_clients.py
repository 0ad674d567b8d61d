"""The official clients of OpenAI and Anthropic, against config/examples/model_api.yaml. Argument: the gateway's URL."""

import base64
import hashlib
import io
import os
import sys
import time

import anthropic
import openai

from asking import get_json

GATEWAY, KEY = sys.argv[1], "foo"
TOTAL = 12 + 34
MEGABYTE = 1 << 20

started = time.monotonic()
client = openai.OpenAI(base_url=f"{GATEWAY}/v1", api_key=KEY, max_retries=0)
claude = anthropic.Anthropic(base_url=GATEWAY, api_key=KEY, max_retries=0)
expected = {"tokens-per-minute": 0, "money-per-month": 0, "claude-tokens-per-minute": 0, "claude-money-per-month": 0}


def used():
    resources = get_json(f"{GATEWAY}/usage", {"Authorization": f"Bearer {KEY}"})["resources"]
    return {name: limit["used"] for name, limit in resources.items()}


def charged(name, tokens, money):
    """What a call has cost. It is settled shortly after the last byte."""
    prefix = "claude-" if name == "claude" else ""
    expected[f"{prefix}tokens-per-minute"] += tokens
    expected[f"{prefix}money-per-month"] += money
    end = time.monotonic() + 10
    while not is_expected(used()):
        assert time.monotonic() < end, f"{used()}, expected {expected}"
        time.sleep(0.02)


def is_expected(counts):
    # On a slow machine, the first minute has ended: what was used in it is no longer counted.
    has_ended = time.monotonic() > started + 50
    return all(counts[name] == units or has_ended and "minute" in name for name, units in expected.items())


def go_on():
    """Lets the server send the rest of a stream."""
    client.models.retrieve("continue")


def is_echo(text):
    words = text.split(" ")
    return words[:3] == ["I", "have", "read"] and len(words[3]) == 64


OPENAI_PRICE = 23  # 12 x 0.15 + 34 x 0.6, rounded up
CLAUDE_PRICE = 12 * 3 + 34 * 15
question = [{"role": "user", "content": "What is this?"}]

# The limits of OpenAI's API.
assert [model.id for model in client.models.list()] == ["small", "broken"]
charged("openai", 0, 0)

answer = client.chat.completions.create(model="small", messages=question, max_tokens=500)
assert is_echo(answer.choices[0].message.content)
assert answer.usage.total_tokens == TOTAL
charged("openai", TOTAL, OPENAI_PRICE)

stream = client.chat.completions.create(
    model="small", messages=question, max_completion_tokens=500, stream=True, stream_options={"include_usage": True}
)
text = ""
for chunk in stream:
    if not text:
        go_on()
    text += "".join(choice.delta.content or "" for choice in chunk.choices)
assert is_echo(text), text
charged("openai", TOTAL, OPENAI_PRICE)

# Without its usage, a stream costs what was estimated.
for chunk in client.chat.completions.create(model="small", messages=question, max_tokens=500, stream=True):
    go_on()
charged("openai", 500, 500)

assert is_echo(client.responses.create(model="small", input="What is this?", max_output_tokens=500).output_text)
charged("openai", TOTAL, OPENAI_PRICE)

text = ""
for event in client.responses.create(model="small", input="What is this?", stream=True):
    if event.type == "response.created":
        go_on()
    if event.type == "response.output_text.delta":
        text += event.delta
assert is_echo(text), text
charged("openai", TOTAL, OPENAI_PRICE)

assert client.embeddings.create(model="small", input="a", encoding_format="float").data[0].embedding == [0.5, -0.25]
charged("openai", 12, 2)

# An image of 3 MB: `model` and `max_tokens` come after it in the body.
image = base64.b64encode(os.urandom(3 * MEGABYTE)).decode()
picture = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{image}"}}
content = [{"type": "text", "text": "What is this?"}, picture]
answer = client.chat.completions.create(model="small", messages=[{"role": "user", "content": content}], max_tokens=500)
assert is_echo(answer.choices[0].message.content)
charged("openai", TOTAL, OPENAI_PRICE)

# Uploads in parts of a form report no tokens.
audio = os.urandom(5 * MEGABYTE)
transcription = client.audio.transcriptions.create(model="small", file=("a.wav", io.BytesIO(audio), "audio/wav"))
assert transcription.text == hashlib.sha256(audio).hexdigest()
charged("openai", 1000, 1000)
file = client.files.create(file=("a.jsonl", io.BytesIO(audio + image.encode())), purpose="batch")
assert (file.bytes, file.filename) == (len(audio + image.encode()), hashlib.sha256(audio + image.encode()).hexdigest())
charged("openai", 1000, 1000)
with client.audio.speech.with_streaming_response.create(model="small", voice="alloy", input="a") as speech:
    assert speech.read() == bytes(range(256)) * 4096
charged("openai", 1000, 1000)

# Errors cost nothing.
try:
    client.chat.completions.create(model="broken", messages=question, max_tokens=5000)
    raise AssertionError("no error")
except openai.InternalServerError as error:
    assert error.status_code == 503, error
charged("openai", 0, 0)
try:
    openai.OpenAI(base_url=f"{GATEWAY}/v1", api_key="bar", max_retries=0).models.list()
    raise AssertionError("no error")
except openai.AuthenticationError as error:
    assert error.status_code == 401

# The limits of Anthropic's API.
request = {"model": "small", "max_tokens": 500, "messages": question}
answer = claude.messages.create(**request)
assert is_echo(answer.content[0].text)
charged("claude", TOTAL, CLAUDE_PRICE)

text = ""
with claude.messages.stream(**request) as events:
    for event in events:
        if event.type == "message_start":
            go_on()
        if event.type == "text":
            text += event.text
    assert events.get_final_message().usage.output_tokens == 34
assert is_echo(text), text
charged("claude", TOTAL, CLAUDE_PRICE)

source = {"type": "base64", "media_type": "image/png", "data": image}
content = [{"type": "image", "source": source}, {"type": "text", "text": "What is this?"}]
answer = claude.messages.create(model="small", max_tokens=500, messages=[{"role": "user", "content": content}])
assert is_echo(answer.content[0].text)
charged("claude", TOTAL, CLAUDE_PRICE)

assert claude.messages.count_tokens(model="small", messages=question).input_tokens == 12
charged("claude", 1, 1)
try:
    claude.messages.create(model="broken", max_tokens=5000, messages=question)
    raise AssertionError("no error")
except anthropic.InternalServerError as error:
    assert error.status_code == 503, error
charged("claude", 0, 0)

# The quota of the plan is left in the headers, and its excess is the error that clients know.
raw = client.chat.completions.with_raw_response.create(model="small", messages=question, max_tokens=500)
assert int(raw.headers["x-ratelimit-limit"]) == 200_000, raw.headers
charged("openai", TOTAL, OPENAI_PRICE)
for create, error_type in [(client.chat.completions.create, openai.RateLimitError), (claude.messages.create, anthropic.RateLimitError)]:
    try:
        # Anthropic's client refuses so many tokens by itself, unless it has a timeout.
        create(model="small", messages=question, max_tokens=199_999, timeout=60)
        raise AssertionError("no error")
    except error_type as error:
        assert error.status_code == 429, error
        assert 0 < int(error.response.headers["retry-after"]) <= 120, error.response.headers
        assert error.response.headers["content-type"] == "application/problem+json"
charged("openai", 0, 0)
print("passed")
