"""The retries of the official clients: each waits as long as the 429 says, and then succeeds.

Argument: the URL of a gateway with config/examples/model_api.yaml, whose windows have 2 seconds and whose plan has 500 tokens.
"""

import sys
import time

import anthropic
import openai

GATEWAY, KEY = sys.argv[1], "foo"
question = [{"role": "user", "content": "What is this?"}]
client = openai.OpenAI(base_url=f"{GATEWAY}/v1", api_key=KEY, max_retries=3)
claude = anthropic.Anthropic(base_url=GATEWAY, api_key=KEY, max_retries=3)

for create in (client.chat.completions.with_raw_response.create, claude.messages.with_raw_response.create):
    retries, start = 0, time.monotonic()
    for _ in range(3):
        # Each reserves 470 of the 500 units, and costs 46 in the end.
        raw = create(model="small", messages=question, max_tokens=470)
        assert raw.status_code == 200
        retries += raw.retries_taken
    assert 1 <= retries <= 3, f"{retries} retries: it did not wait for as long as it was told"
    assert time.monotonic() - start >= 1, "it waited"
print("passed")
