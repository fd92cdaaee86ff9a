"""Puts words in the mouth of the model behind a server: it sits between an agent and `halfwarp serve`.

Every request with tools is passed on with a form that allows one text, the next one of a script; what comes back is
the server's own: how it reads calls in that text, and the objects and events that it makes of them. Other requests,
such as for the title of a conversation, may have a few tokens.
"""

import http.client
import http.server
import json
import threading
import urllib.parse


def call(name, **arguments):
    """A call as models write it whose templates know no tools."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def num_results(body):
    """How many calls of the conversation have been answered."""
    items = body["input"] if isinstance(body.get("input"), list) else []
    results = [item for item in items if item.get("type") == "function_call_output"]
    for message in body.get("messages", []):
        content = message.get("content")
        blocks = content if isinstance(content, list) else []
        results += [block for block in blocks if block.get("type") == "tool_result"]
        results += [message] if message.get("role") == "tool" else []
    return len(results)


class Script:
    """A server at `url` that answers by `texts`, one after each result of a call; `requests` has what was asked."""

    def __init__(self, upstream, texts):
        self.upstream = urllib.parse.urlsplit(upstream)
        self.texts = texts
        self.requests = []
        script = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                script.pass_on(self, None)

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                script.pass_on(self, body)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def pass_on(self, handler, body):
        """Sends a request on, and its answer back as it comes."""
        counts = handler.path.split("?")[0].endswith("count_tokens")
        if body and body.get("tools") and not counts:
            body["guided_choice"] = [self.texts[min(num_results(body), len(self.texts) - 1)]]
        elif body and not counts:
            body["max_output_tokens" if "input" in body else "max_tokens"] = 8
        upstream = http.client.HTTPConnection(self.upstream.hostname, self.upstream.port)
        upstream.request(
            handler.command,
            handler.path,
            json.dumps(body) if body else None,
            {"Content-Type": "application/json"},
        )
        answer = upstream.getresponse()
        self.requests.append((handler.path, body, answer.status))
        handler.send_response(answer.status)
        handler.send_header("Content-Type", answer.headers["Content-Type"])
        handler.send_header("Connection", "close")
        handler.end_headers()
        try:
            while data := answer.read1(65536):
                handler.wfile.write(data)
                handler.wfile.flush()
        except ConnectionError:
            pass
        handler.close_connection = True

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()

    def check(self, path):
        """Every turn of the script was asked for, on `path`, and answered."""
        wrong = [(path, status) for path, _, status in self.requests if status >= 400 and path != "/v1/models"]
        assert not wrong, f"{wrong}: {self.requests[-1][1]}"
        turns = {
            num_results(body)
            for asked, body, _ in self.requests
            if body and body.get("tools") and asked.startswith(path)
        }
        assert turns >= set(range(len(self.texts))), (turns, [path for path, _, _ in self.requests])
