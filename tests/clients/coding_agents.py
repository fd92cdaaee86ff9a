"""Agents that edit a file by tools: `python coding_agents.py BASE_URL MODEL NODE_MODULES`; without the last, those of npm are left out.

openai-agents, OpenAI's Codex CLI and Claude Code, each of them real; only the model's words are a script's.
"""

import asyncio
import os
import pathlib
import subprocess
import sys
import tempfile

import agents
import openai
from script import Script, call

BEFORE, AFTER = "Hello, world.\n", "Goodbye, world.\n"
TASK = "Say goodbye instead of hello in greeting.txt."
TIMEOUT = 300


def run(command, dir, home, **variables):
    """Runs an agent in `dir`, with nothing of the user's own settings."""
    kept = {name: os.environ[name] for name in ["PATH", "TMPDIR"] if name in os.environ}
    environment = {**kept, "HOME": str(home), **variables}
    ended = subprocess.run(
        command, cwd=dir, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIMEOUT
    )
    assert ended.returncode == 0, f"{command[0]}: {ended.stdout}{ended.stderr}"
    return ended.stdout


def openai_agents(upstream, model, dir, _):
    file = dir / "greeting.txt"

    @agents.function_tool
    def read_file(path: str) -> str:
        """Returns the text of a file."""
        return (dir / path).read_text()

    @agents.function_tool
    def write_file(path: str, text: str) -> str:
        """Writes a file."""
        (dir / path).write_text(text)
        return "written"

    agents.set_tracing_disabled(True)
    texts = [
        "I read it first.\n" + call("read_file", path="greeting.txt"),
        call("write_file", path="greeting.txt", text=AFTER),
        "It says goodbye now.",
    ]
    kinds = [
        (agents.OpenAIResponsesModel, "/v1/responses"),
        (agents.OpenAIChatCompletionsModel, "/v1/chat/completions"),
    ]
    for kind, path in kinds:
        for stream in [False, True]:
            file.write_text(BEFORE)
            with Script(upstream, texts) as script:
                client = openai.AsyncOpenAI(base_url=script.url + "/v1", api_key="none", max_retries=0)
                agent = agents.Agent(
                    name="Editor",
                    instructions="You edit files.",
                    tools=[read_file, write_file],
                    model=kind(model=model, openai_client=client),
                )
                output = run_agent(agent, stream)
                assert output == texts[-1], output
                script.check(path)
            assert file.read_text() == AFTER


def run_agent(agent, stream):
    if not stream:
        return agents.Runner.run_sync(agent, TASK).final_output
    async def streamed():
        result = agents.Runner.run_streamed(agent, TASK)
        async for _ in result.stream_events():
            pass
        return result.final_output

    return asyncio.run(streamed())


def codex(upstream, model, dir, bin):
    texts = [
        call("exec_command", cmd="sed -i s/Hello/Goodbye/ greeting.txt"),
        "It says goodbye now.",
    ]
    with Script(upstream, texts) as script, tempfile.TemporaryDirectory() as home:
        settings = {
            "model": model,
            "model_provider": "halfwarp",
            "model_providers.halfwarp.name": "halfwarp",
            "model_providers.halfwarp.base_url": script.url + "/v1",
            "model_providers.halfwarp.wire_api": "responses",
        }
        settings = [part for name, value in settings.items() for part in ["-c", f'{name}="{value}"']]
        # The file is in a directory of its own that nothing else is in.
        free = ["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
        output = run([bin / "codex", "exec", *free, *settings, TASK], dir, home)
        assert texts[-1] in output, output
        script.check("/v1/responses")


def claude_code(upstream, model, dir, bin):
    path = str(dir / "greeting.txt")
    texts = [
        "I read it first.\n" + call("Read", file_path=path),
        call("Edit", file_path=path, old_string="Hello", new_string="Goodbye"),
        "It says goodbye now.",
    ]
    with Script(upstream, texts) as script, tempfile.TemporaryDirectory() as home:
        variables = {
            "ANTHROPIC_BASE_URL": script.url,
            "ANTHROPIC_AUTH_TOKEN": "none",
            "ANTHROPIC_MODEL": model,
            "ANTHROPIC_DEFAULT_HAIKU_MODEL": model,
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        }
        # The descriptions of all of its tools make a prompt of 20,000 tokens.
        options = ["--print", "--permission-mode", "acceptEdits", "--tools", "Read,Edit"]
        command = [bin / "claude", *options, "--", TASK]
        output = run(command, dir, home, **variables)
        assert texts[-1] in output, output
        script.check("/v1/messages")


def main():
    upstream, model = sys.argv[1:3]
    bin = pathlib.Path(sys.argv[3], ".bin") if len(sys.argv) > 3 else None
    for agent in [openai_agents, codex, claude_code]:
        if bin is None and agent is not openai_agents:
            continue
        with tempfile.TemporaryDirectory() as dir:
            file = pathlib.Path(dir, "greeting.txt")
            file.write_text(BEFORE)
            agent(upstream, model, pathlib.Path(dir), bin)
            assert file.read_text() == AFTER, file.read_text()
        print(agent.__name__)


main()
