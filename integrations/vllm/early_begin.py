# SPDX-License-Identifier: Apache-2.0
"""Programmatic dependent launch (PDL) of products after inductor's kernels, on Hopper.

A kernel can use PDL only after one that allows it. Products do; kernels of inductor do with its
option `triton.enable_pdl`, which is left to the user: it is off by default, and changes how all of
inductor's kernels are launched.
"""

from __future__ import annotations

from torch._inductor import config as inductor
from vllm.config import CompilationMode, VllmConfig
from vllm.platforms import current_platform

from flashsparse_plugin.ops import STATUS, ops

from .summary import logger

OPTION = "triton.enable_pdl"
HOPPER = 90


def begin_early(vllm_config: VllmConfig) -> None:
    """Lets products use PDL after inductor's kernels where these allow it; logs that.

    Call it while the model is made, before any product is recorded in a CUDA graph. What counts is
    `compilation_config.inductor_compile_config`, or else torch's own configuration.
    """
    if not STATUS["_C_cuda"].loaded:
        return
    is_on = _is_on(vllm_config)
    was_on = ops.begin_early(is_on)
    if is_on and not was_on:
        logger.info("products use PDL: torch's inductor compiles with %s", OPTION)


def _is_on(vllm_config: VllmConfig) -> bool:
    compilation = vllm_config.compilation_config
    if compilation.mode == CompilationMode.NONE or compilation.backend != "inductor":
        return False
    if not current_platform.is_device_capability(HOPPER):
        return False
    own = getattr(inductor.triton, "enable_pdl", False)  # not every torch has it
    return bool(compilation.inductor_compile_config.get(OPTION, own))
