# SPDX-License-Identifier: Apache-2.0
"""CUDA graphs whose kernels begin early, or with every early begin taken out of them."""

from __future__ import annotations

import ctypes
import statistics
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from flashsparse_plugin.dataflow.tuner import elapsed, warmed_up


class Edges:
    """The edges of a captured graph, through the driver that torch has loaded."""

    class Data(ctypes.Structure):
        """CUgraphEdgeData."""

        _fields_ = (
            ("from_port", ctypes.c_ubyte),
            ("to_port", ctypes.c_ubyte),
            ("type", ctypes.c_ubyte),
            ("reserved", ctypes.c_ubyte * 5),
        )

    PROGRAMMATIC = 1

    def __init__(self) -> None:
        self._driver = ctypes.CDLL("libcuda.so.1")

    def fill(self, graph: torch.cuda.CUDAGraph) -> int:
        """Makes programmatic edges full ones: each kernel waits for the end of the one before.

        Returns:
            How many there were.
        """
        handle, count = ctypes.c_void_p(graph.raw_cuda_graph()), ctypes.c_size_t()
        self._call("cuGraphGetEdges_v2", handle, None, None, None, ctypes.byref(count))
        nodes = ctypes.c_void_p * count.value
        begins, ends, kinds = nodes(), nodes(), (self.Data * count.value)()
        self._call("cuGraphGetEdges_v2", handle, begins, ends, kinds, ctypes.byref(count))
        changed = [i for i in range(count.value) if kinds[i].type == self.PROGRAMMATIC]
        for i in changed:
            edge = [ctypes.c_void_p(begins[i]), ctypes.c_void_p(ends[i])]
            places = [ctypes.byref(each) for each in edge]
            one = ctypes.c_size_t(1)
            self._call("cuGraphRemoveDependencies_v2", handle, *places, ctypes.byref(kinds[i]), one)
            self._call("cuGraphAddDependencies_v2", handle, *places, None, one)
        return len(changed)

    def _call(self, name: str, *arguments: Any) -> None:
        error = getattr(self._driver, name)(*arguments)
        if error:
            raise RuntimeError(f"{name} answers {error}")


def replayed(
    call: Callable[[], Tensor], copies: int, early: bool, replays: int
) -> tuple[float, int, Tensor]:
    """Microseconds of a call in a graph of many, the early begins in it, and its last result."""
    stream, calls = warmed_up(call, copies)
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(calls):
            y = call()
    begins = 0 if early else Edges().fill(graph)
    graph.instantiate()
    with torch.cuda.stream(stream):
        graph.replay()
        times = [elapsed(graph.replay, stream) for _ in range(replays)]
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    return statistics.median(times) / calls * 1e6, begins, y.clone()
