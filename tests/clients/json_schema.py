"""Answers to JSON schemas at temperature 1: each has to parse, and to validate by the package jsonschema.

`python json_schema.py BASE_URL [--requests N] [--seed S]`. The first answers that are wrong end it.
"""

import argparse
import concurrent.futures
import json
import time
import urllib.request

import jsonschema
import openai

# As many as the server runs requests.
NUM_CLIENTS = 8
# What each schema allows is shorter, but for a number of hundreds of digits.
MAX_TOKENS = 1500
# Answers that are wrong before the rest is given up.
MAX_FAILURES = 5


def text(**bounds):
    return {"type": "string", **bounds}


def number(kind, least, most):
    return {"type": kind, "minimum": least, "maximum": most}


def array(items, **bounds):
    return {"type": "array", "items": items, **bounds}


def obj(properties, required, **more):
    fields = {"properties": properties, "required": required, "additionalProperties": False}
    return {"type": "object", **fields, **more}


SHORT = text(maxLength=12)
PLACE = obj({"city": SHORT, "lat": number("number", -90, 90)}, ["city"])
CELL = number("integer", -999, 999)
LEAF = {"$ref": "#/$defs/leaf"}

# What people ask for: objects in objects, bounds of lists, texts and numbers, choices, fields that may be left out.
SCHEMAS = [
    obj(
        {
            "name": text(minLength=1, maxLength=20),
            "age": number("integer", 0, 120),
            "home": PLACE,
            "work": PLACE,
        },
        ["name", "age", "home"],
    ),
    array({"enum": ["red", "green", "blue", 7, None, {"a": []}]}, minItems=2, maxItems=6),
    obj(
        {
            "kind": {"const": "circle"},
            "filled": {"type": "boolean"},
            "radius": {"type": "number", "exclusiveMinimum": 0, "maximum": 100},
        },
        ["kind", "radius"],
    ),
    obj({"rows": array(array(CELL, minItems=2, maxItems=2), minItems=1, maxItems=3)}, ["rows"]),
    {"anyOf": [{"type": "null"}, SHORT, obj({"why": SHORT}, ["why"])]},
    obj(
        {
            "id": text(pattern="^[A-Z]{3}-[0-9]{4}$"),
            "day": text(format="date"),
            "tags": array(SHORT, maxItems=4),
        },
        ["id", "day"],
    ),
    obj(
        {"left": LEAF, "right": LEAF},
        ["left"],
        **{"$defs": {"leaf": obj({"value": number("integer", 0, 9)}, ["value"])}},
    ),
]


def check(client, model, index, seed):
    """What is wrong with the answer to a request; nothing if it is whole, and of its schema."""
    schema = SCHEMAS[index % len(SCHEMAS)]
    answer = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "Make something up."}],
        temperature=1,
        seed=seed + index,
        max_tokens=MAX_TOKENS,
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": schema},
        },
    )
    choice = answer.choices[0]
    content = choice.message.content
    if choice.finish_reason != "stop":
        return f"it ended by {choice.finish_reason}: {content}"
    try:
        jsonschema.validate(json.loads(content), schema)
    except (json.JSONDecodeError, jsonschema.ValidationError) as error:
        return f"{error}: {content}"
    return None


def metric(url, name):
    """The value of a metric of the server."""
    with urllib.request.urlopen(f"{url}/metrics") as reply:
        lines = reply.read().decode().splitlines()
    line = next(line for line in lines if line.startswith(f"halfwarp:{name}{{"))
    return float(line.rsplit(" ", 1)[1])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    client = openai.OpenAI(base_url=f"{args.url}/v1", api_key="none", max_retries=0, timeout=300)
    model = client.models.list().data[0].id
    start = time.monotonic()
    failures = []

    def run(index):
        if len(failures) < MAX_FAILURES:
            fault = check(client, model, index, args.seed)
            if fault:
                failures.append(f"request {index}: {fault}")

    with concurrent.futures.ThreadPoolExecutor(NUM_CLIENTS) as pool:
        list(pool.map(run, range(args.requests)))
    assert not failures, "\n  ".join(failures)
    seconds, masks, tokens = (
        metric(args.url, name)
        for name in (
            "grammar_mask_seconds_sum",
            "grammar_mask_seconds_count",
            "generation_tokens_total",
        )
    )
    assert masks >= tokens, f"{tokens} tokens and {masks} masks: each token has one"
    print(
        f"{args.requests} of {args.requests} answers to {len(SCHEMAS)} schemas parse and validate, "
        f"in {time.monotonic() - start:.0f} s\n"
        f"{tokens:.0f} tokens; a mask takes {1e6 * seconds / masks:.0f} us on average of {masks:.0f}"
    )


main()
