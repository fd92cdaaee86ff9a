"""langchain-openai against a server: `python langchain_chat.py BASE_URL`. The first check that fails ends it."""

import sys

import langchain_openai
import openai
import pydantic

QUESTION = "What is the capital of France?"


class City(pydantic.BaseModel):
    """A city."""

    name: str = pydantic.Field(max_length=20)


def main():
    base = sys.argv[1] + "/v1"
    model = openai.OpenAI(base_url=base, api_key="none").models.list().data[0].id
    options = {"base_url": base, "api_key": "none", "model": model, "max_retries": 0}
    chat = langchain_openai.ChatOpenAI(**options, temperature=0, max_tokens=60)

    answer = chat.invoke(QUESTION)
    assert "Paris" in answer.content, answer
    assert answer.usage_metadata["output_tokens"] > 1, answer
    print("invoke")

    parts = [part.content for part in chat.stream(QUESTION)]
    assert "".join(parts) == answer.content and len(parts) > 3, parts
    print("stream")

    for method in ["function_calling", "json_schema"]:
        city = chat.with_structured_output(City, method=method).invoke(QUESTION)
        assert isinstance(city, City), city
    print("with_structured_output")

    called = chat.bind_tools([City], tool_choice="any", parallel_tool_calls=False).invoke(QUESTION)
    assert called.tool_calls[0]["name"] == "City", called
    print("bind_tools")


main()
