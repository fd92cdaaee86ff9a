"""openai-python against a server: `python openai_python.py BASE_URL`. The first check that fails ends it."""

import json
import sys

import openai
import pydantic

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather in a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


class City(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=20)
    is_capital: bool


def chat(client, model):
    answer = client.chat.completions.create(
        model=model, messages=QUESTION, temperature=0, max_tokens=24
    )
    choice = answer.choices[0]
    assert "Paris" in choice.message.content, answer
    assert choice.finish_reason == "stop", answer
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    return choice.message.content, answer.usage


def stream(client, model, wanted):
    text, usage = wanted
    chunks = list(
        client.chat.completions.create(
            model=model,
            messages=QUESTION,
            temperature=0,
            max_tokens=24,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    deltas = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(deltas) == text, deltas
    assert len([delta for delta in deltas if delta]) > 3, deltas
    assert chunks[-1].usage.completion_tokens == usage.completion_tokens, chunks[-1]
    assert all(chunk.usage is None for chunk in chunks[:-1])


def logprobs(client, model, wanted):
    answer = client.chat.completions.create(
        model=model, messages=QUESTION, temperature=0, max_tokens=24, logprobs=True, top_logprobs=3
    )
    tokens = answer.choices[0].logprobs.content
    assert b"".join(bytes(token.bytes) for token in tokens).decode().startswith(wanted[0]), tokens
    for token in tokens:
        assert token.top_logprobs[0].logprob == token.logprob <= 0, token
        assert len(token.top_logprobs) == 3, token


def embeddings(client, model, _):
    texts = ["The cat sleeps.", "A cat is sleeping.", "Interest rates rose in March."]
    answer = client.embeddings.create(model=model, input=texts)
    vectors = [data.embedding for data in answer.data]
    dot = lambda a, b: sum(x * y for x, y in zip(a, b))
    assert all(abs(dot(vector, vector) - 1) < 1e-4 for vector in vectors)
    assert dot(vectors[0], vectors[1]) > dot(vectors[0], vectors[2]), vectors
    floats = client.embeddings.create(model=model, input=texts[0], encoding_format="float")
    assert dot(floats.data[0].embedding, vectors[0]) > 0.9999


def tools(client, model, _):
    named = {"type": "function", "function": {"name": "weather"}}
    for choice, finish_reason in [("required", "tool_calls"), (named, "stop")]:
        answer = client.chat.completions.create(
            model=model,
            messages=QUESTION,
            tools=[TOOL],
            tool_choice=choice,
            parallel_tool_calls=False,
            max_tokens=60,
        )
        [call] = answer.choices[0].message.tool_calls
        assert answer.choices[0].finish_reason == finish_reason, answer
        assert call.function.name == "weather", answer
        assert json.loads(call.function.arguments)["city"] in ["Paris", "Rome"], answer
        result = {"role": "tool", "tool_call_id": call.id, "content": "Rain."}
        messages = [*QUESTION, answer.choices[0].message, result]
        client.chat.completions.create(model=model, messages=messages, tools=[TOOL], max_tokens=8)


def json_schema(client, model, _):
    answer = client.chat.completions.parse(
        model=model, messages=QUESTION, response_format=City, max_tokens=100
    )
    assert isinstance(answer.choices[0].message.parsed, City), answer
    response = client.responses.parse(
        model=model, input=QUESTION, text_format=City, max_output_tokens=100
    )
    assert isinstance(response.output_parsed, City), response


def completions(client, model, _):
    tokenize = client.post("/../tokenize", body={"prompt": "The capital of France is"}, cast_to=object)
    answer = client.completions.create(
        model=model, prompt=tokenize["tokens"], temperature=0, max_tokens=6
    )
    assert "Paris" in answer.choices[0].text, answer
    assert answer.usage.prompt_tokens == tokenize["count"], answer
    two = client.completions.create(model=model, prompt=[tokenize["tokens"]] * 2, max_tokens=2)
    assert [choice.index for choice in two.choices] == [0, 1], two


def responses(client, model, wanted):
    text, usage = wanted
    options = {"model": model, "input": QUESTION, "temperature": 0, "max_output_tokens": 24}
    response = client.responses.create(**options)
    assert (response.output_text, response.status) == (text, "completed"), response
    assert response.usage.output_tokens == usage.completion_tokens, response
    events = list(client.responses.create(**options, stream=True))
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == text, events
    assert (events[0].type, events[-1].type) == ("response.created", "response.completed"), events
    assert events[-1].response.output_text == text, events[-1]
    with client.responses.stream(**options) as stream:
        assert stream.get_final_response().output_text == text
    # An answer is input again.
    turn = [*QUESTION, *response.output, {"role": "user", "content": "And of Italy?"}]
    client.responses.create(model=model, input=turn, instructions="Be brief.", max_output_tokens=4)


def response_tools(client, model, _):
    """Every answer and every event is checked against its type."""
    client = openai.OpenAI(
        base_url=client.base_url, api_key="none", max_retries=0, _strict_response_validation=True
    )
    tool = {"type": "function", **TOOL["function"], "strict": False}
    named = {"type": "function", "name": "weather"}
    for choice in ["required", named]:
        options = {
            "model": model,
            "input": QUESTION,
            "tools": [tool],
            "tool_choice": choice,
            "parallel_tool_calls": False,
            "max_output_tokens": 60,
        }
        response = client.responses.create(**options)
        [call] = response.output
        assert (call.type, call.name) == ("function_call", "weather"), response
        assert json.loads(call.arguments)["city"] in ["Paris", "Rome"], response
        with client.responses.stream(**options) as stream:
            kinds = [event.type for event in stream]
            [streamed] = stream.get_final_response().output
        assert "response.function_call_arguments.delta" in kinds, kinds
        assert json.loads(streamed.arguments)["city"] in ["Paris", "Rome"], streamed
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "Rain."}
    rest = {"model": model, "tools": [tool], "temperature": 0, "max_output_tokens": 8}
    by_id = client.responses.create(input=[output], previous_response_id=response.id, **rest)
    by_items = client.responses.create(input=[*QUESTION, call, output], store=False, **rest)
    assert by_id.output_text == by_items.output_text, (by_id, by_items)
    assert client.responses.retrieve(by_id.id) == by_id
    client.responses.delete(by_id.id)
    scored = client.responses.create(
        model=model,
        input=QUESTION,
        max_output_tokens=4,
        include=["message.output_text.logprobs"],
        top_logprobs=2,
    )
    assert len(scored.output[0].content[0].logprobs[0].top_logprobs) == 2, scored


def errors(client, model, _):
    def fails(error, **options):
        try:
            client.chat.completions.create(**{"model": model, "messages": QUESTION, **options})
        except error as caught:
            return caught
        raise AssertionError(f"no {error.__name__}: {options}")

    assert fails(openai.NotFoundError, model="none").code == "model_not_found"
    assert fails(openai.BadRequestError, temperature=-1).param == "temperature"
    assert fails(openai.BadRequestError, tool_choice="required").param == "tool_choice"
    long = [{"role": "user", "content": "word " * 5000}]
    assert fails(openai.BadRequestError, messages=long).code == "context_length_exceeded"
    try:
        client.responses.create(model=model, input="x", previous_response_id="resp_1")
    except openai.NotFoundError as error:
        assert error.code == "previous_response_not_found", error
    else:
        raise AssertionError("an unknown previous_response_id is not refused")


def main():
    client = openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="none", max_retries=0)
    model = client.models.list().data[0].id
    wanted = chat(client, model)
    print("chat")
    checks = [stream, logprobs, embeddings, tools, json_schema, completions, responses, response_tools, errors]
    for check in checks:
        check(client, model, wanted)
        print(check.__name__)


main()
