# SPDX-License-Identifier: Apache-2.0
"""On Hopper, products begin beside the end of kernels of torch's inductor, if the user says so.

A kernel can begin early only behind one that allows it (programmatic dependent launch). Products
do; kernels of inductor do where its option `triton.enable_pdl` is on, which is the user's to say:
torch has it off, and it changes how all of its kernels are launched.
"""

from __future__ import annotations

from torch._inductor import config as inductor
from vllm.config import CompilationMode, VllmConfig
from vllm.platforms import current_platform

from flashsparse_plugin.ops import STATUS, ops

from .summary import logger

OPTION = "triton.enable_pdl"
_HOPPER = 90


def begin_early(vllm_config: VllmConfig) -> None:
    """Tells products whether inductor's kernels let the next begin; says so in the log.

    Call it while the model is made, before any product is recorded in a CUDA graph. It counts what
    `compilation_config.inductor_compile_config` says, or else torch's own configuration.
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
    if not current_platform.is_device_capability(_HOPPER):
        return False
    own = getattr(inductor.triton, "enable_pdl", False)  # not every torch has it
    return bool(compilation.inductor_compile_config.get(OPTION, own))
