# SPDX-License-Identifier: Apache-2.0
"""Servers of tests, each in a thread of the test's own process."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from socketserver import BaseServer
from typing import TypeVar

Server = TypeVar("Server", bound=BaseServer)


@contextmanager
def serving(server: Server) -> Iterator[Server]:
    """Answers while the block runs, and ends with it, however the block ends.

    A thread that goes on after its socket is closed polls without a pause: every later test of the
    process then takes many times as long.
    """
    with server:
        # The end is noticed at the next poll.
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
