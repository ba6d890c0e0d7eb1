# SPDX-License-Identifier: Apache-2.0
"""examples/serve_client.py, against a stub of vLLM's server. vLLM brings the package openai."""

import json
import runpy
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from serving import serving

CLIENT = Path(__file__).parents[2] / "examples" / "serve_client.py"


@pytest.fixture
def server():
    class Stub(BaseHTTPRequestHandler):
        """Streams two pieces of text, as vLLM does, and keeps what it was asked."""

        asked: dict = {}

        def do_POST(self):
            Stub.asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200 if self.path == "/v1/chat/completions" else 404)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            for text in ("The sea ", "is wide."):
                choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
                chunk = {
                    "id": "1",
                    "object": "chat.completion.chunk",
                    "created": 0,
                    "model": "demo",
                }
                self.wfile.write(f"data: {json.dumps(chunk | {'choices': [choice]})}\n\n".encode())
            self.wfile.write(b"data: [DONE]\n\n")

        def log_message(self, *_):
            pass

    with serving(HTTPServer(("127.0.0.1", 0), Stub)) as http:
        yield http


def test_the_client_prints_what_the_server_streams(server, capsys):
    address = f"http://127.0.0.1:{server.server_port}/v1"
    runpy.run_path(str(CLIENT))["main"](["Tell me about the sea.", "--server", address])
    assert capsys.readouterr().out.startswith("The sea is wide.\n")
    asked = server.RequestHandlerClass.asked
    assert asked["model"] == "demo" and asked["stream"] is True
    assert asked["messages"][0]["content"] == "Tell me about the sea."
