# SPDX-License-Identifier: Apache-2.0
"""Hugging Face transformers: `from_pretrained` on packed and on dense checkpoints."""


def register() -> None:
    """Registers the quantization method `flashsparse`; calling it again changes nothing."""
