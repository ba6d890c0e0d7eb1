# SPDX-License-Identifier: Apache-2.0
"""benchmarks/soak.py against a server that answers at once: what it counts, and what it notices."""

import json
import os
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import soak
from serving import serving

REQUESTS = [soak.Request((n,), tuple(range(n, n + 3 + n % 4))) for n in range(8)]
ANSWERS = {request.prompt: list(request.expected) for request in REQUESTS}


class Parrot(BaseHTTPRequestHandler):
    """Knows the right answers; `spoil` changes one before it is given."""

    spoil = staticmethod(lambda number, tokens: tokens)
    number = 0
    lock = threading.Lock()

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert body["temperature"] == 0 and body["ignore_eos"]
        with self.lock:
            type(self).number += 1
        tokens = self.spoil(self.number, ANSWERS[tuple(body["prompt"])][: body["max_tokens"]])
        self.send_response(500 if tokens is None else 200)
        self.end_headers()
        if not body["stream"]:
            self.wfile.write(json.dumps({"choices": [{"token_ids": tokens}]}).encode())
            return
        for token in tokens or []:
            event = json.dumps({"choices": [{"token_ids": [token]}]})
            self.wfile.write(f"data: {event}\n\n".encode())
        self.wfile.write(b"data: [DONE]\n\n")

    def log_message(self, *arguments):
        pass


@contextmanager
def parrot(spoil=Parrot.spoil):
    handler = type("Spoilt", (Parrot,), {"spoil": staticmethod(spoil)})
    with serving(ThreadingHTTPServer(("127.0.0.1", 0), handler)) as server:
        yield f"http://127.0.0.1:{server.server_port}"


def run(spoil=Parrot.spoil):
    with parrot(spoil) as url:
        return soak.soak(url, REQUESTS, streams=4, seconds=0.4, group=os.getpgrp())


def test_right_answers_hold():
    outcome = run()
    assert outcome.wrong == [] and outcome.requests >= 4
    assert outcome.tokens >= 3 * outcome.requests
    assert min(outcome.memory) > 1 << 20
    assert "0 wrong" in outcome.lines()[0]


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda number, tokens: [*tokens[:2], 99] if number == 3 else tokens, "token 2 is 99, not"),
        (lambda number, tokens: tokens[:-1] if number == 3 else tokens, "is None, not"),
        (lambda number, tokens: None if number == 3 else tokens, "HTTPError"),
    ],
    ids=["another token", "one too few", "no answer"],
)
def test_one_wrong_answer_is_noticed(spoil, told):
    outcome = run(spoil)
    assert len(outcome.wrong) == 1 and told in outcome.wrong[0]
    assert not outcome.holds and outcome.lines()[-1] == "It does not hold."


def test_memory_that_grows_is_noticed():
    flat = [100 + 50 * (second < 5) for second in range(40)]  # what is set up at first is no growth
    assert soak.Outcome(requests=1, memory=flat).holds
    assert not soak.Outcome(requests=1, memory=[100 + second for second in range(40)]).holds
    assert not soak.Outcome(requests=0, memory=flat).holds


def test_the_model_and_what_is_expected_of_it(tmp_path):
    first, second = soak.requests_of(soak.tiny_model(tmp_path), 2)
    assert (len(first.prompt), len(first.expected), len(second.prompt)) == (1, 8, 6)
    assert len({*second.expected}) > 3  # one that repeats a token proves nothing


def test_clients_that_hang_up_are_counted_and_what_they_got_is_compared():
    outcome = run()
    assert 0 < outcome.cancelled < outcome.requests

    def third_is_wrong(number, tokens):
        return [*tokens[:2], 99, *tokens[3:]]

    told = run(third_is_wrong).wrong
    assert told and all("token 2 is 99" in each for each in told)
