# SPDX-License-Identifier: Apache-2.0
"""A server that answers at once, in the words of vLLM's."""

import json
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from serving import serving


class Parrot(BaseHTTPRequestHandler):
    """Streams as many words as it is asked for, or answers with ids and logits."""

    prompts: list[int]
    refused = 0

    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"version": "1.2.3"}')

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path != "/v1/completions":
            self.send_error(404)
            return
        type(self).prompts.append(len(body["prompt"]))
        if len(self.prompts) == self.refused:
            self.send_error(500)
            return
        count = body["max_tokens"]
        self.send_response(200)
        self.end_headers()
        if not body.get("stream"):
            ids = [sum(body["prompt"]) % 7 + n for n in range(count)]
            best = [{f"w{each}": 9.0, f"w{each + 1}": 8.0} for each in ids]
            choice = {"token_ids": ids, "logprobs": {"top_logprobs": best}}
            self.wfile.write(json.dumps({"choices": [choice]}).encode())
            return
        for _ in range(count):
            self.wfile.write(b'data: {"choices": [{"text": " w7"}]}\n\n')
        usage = {"usage": {"completion_tokens": count}, "choices": []}
        self.wfile.write(f"data: {json.dumps(usage)}\n\ndata: [DONE]\n\n".encode())

    def log_message(self, *arguments):
        pass


@contextmanager
def parrot(**changed):
    handler = type("Own", (Parrot,), {"prompts": [], **changed})
    with serving(ThreadingHTTPServer(("127.0.0.1", 0), handler)) as server:
        yield f"http://127.0.0.1:{server.server_port}", handler.prompts
