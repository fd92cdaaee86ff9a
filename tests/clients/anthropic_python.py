"""anthropic's Python client against a server: `python anthropic_python.py BASE_URL`. The first check that fails ends it.

The client checks every answer and every event against its types, as strictly as it can.
"""

import json
import sys
import urllib.request

import anthropic

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
TOOL = {
    "name": "weather",
    "description": "The weather in a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
        "required": ["city"],
    },
}


def message(client, model):
    # This client has no parameters of sampling.
    greedy = {"temperature": 0}
    options = {"model": model, "messages": QUESTION, "max_tokens": 24, "extra_body": greedy}
    answer = client.messages.create(**options, system="Be brief.")
    [block] = answer.content
    assert block.type == "text" and "Paris" in block.text, answer
    assert answer.stop_reason == "end_turn" and answer.usage.output_tokens > 1, answer
    with client.messages.stream(**options, system="Be brief.") as stream:
        assert "".join(stream.text_stream) == block.text
        last = stream.get_final_message()
    assert (last.content[0].text, last.stop_reason) == (block.text, "end_turn"), last
    assert last.usage.output_tokens == answer.usage.output_tokens, last
    raw = list(client.messages.create(**options, stream=True))
    kinds = [event.type for event in raw]
    assert (kinds[0], kinds[-2:]) == ("message_start", ["message_delta", "message_stop"]), kinds
    stopped = client.messages.create(**options, stop_sequences=["of"])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "of"), stopped
    # The beta's types are others.
    beta = client.beta.messages.create(**options, system="Be brief.", betas=["context-management-2025-06-27"])
    assert beta.content[0].text == block.text, beta


def count_tokens(client, model):
    counted = client.messages.count_tokens(model=model, messages=QUESTION, tools=[TOOL])
    answer = client.messages.create(model=model, messages=QUESTION, tools=[TOOL], max_tokens=1)
    usage = answer.usage
    assert counted.input_tokens == usage.input_tokens + usage.cache_read_input_tokens, (counted, usage)


def tools(client, model):
    for choice in [{"type": "any"}, {"type": "tool", "name": "weather"}]:
        options = {
            "model": model,
            "messages": QUESTION,
            "max_tokens": 60,
            "tools": [TOOL],
            "tool_choice": {**choice, "disable_parallel_tool_use": True},
        }
        answer = client.messages.create(**options)
        [call] = answer.content
        assert (call.type, call.name, answer.stop_reason) == ("tool_use", "weather", "tool_use"), answer
        assert call.input["city"] in ["Paris", "Rome"], answer
        with client.messages.stream(**options) as stream:
            [streamed] = stream.get_final_message().content
        assert streamed.input["city"] in ["Paris", "Rome"], streamed
        result = {"type": "tool_result", "tool_use_id": call.id, "content": "Rain."}
        turns = [
            *QUESTION,
            {"role": "assistant", "content": answer.content},
            {"role": "user", "content": [result]},
        ]
        client.messages.create(model=model, messages=turns, tools=[TOOL], max_tokens=8)


def errors(client, model):
    def fails(error, **options):
        try:
            client.messages.create(**{"model": model, "messages": QUESTION, "max_tokens": 4, **options})
        except error as caught:
            return caught.body["error"]["type"]
        raise AssertionError(f"no {error.__name__}: {options}")

    assert fails(anthropic.NotFoundError, model="none") == "not_found_error"
    assert fails(anthropic.BadRequestError, extra_body={"temperature": -1}) == "invalid_request_error"
    search = {"type": "web_search_20250305", "name": "web_search"}
    assert fails(anthropic.BadRequestError, tools=[search]) == "invalid_request_error"
    long = [{"role": "user", "content": "word " * 5000}]
    assert fails(anthropic.BadRequestError, messages=long) == "invalid_request_error"


def main():
    client = anthropic.Anthropic(
        base_url=sys.argv[1], api_key="none", max_retries=0, _strict_response_validation=True
    )
    with urllib.request.urlopen(sys.argv[1] + "/v1/models") as models:
        model = json.load(models)["data"][0]["id"]
    for check in [message, count_tokens, tools, errors]:
        check(client, model)
        print(check.__name__)


main()
