# SPDX-License-Identifier: Apache-2.0
"""Quality, speed and bytes of models side by side.

quality.py  perplexity on a text
tasks.py    tasks of lm-eval
speed.py    tokens a second of prefill and of decode
sizes.py    bytes of the linear weights, on disk and in memory
methods.py  what can be made of a dense model in memory: our formats, and what people could take
rivals.py   the latter: quantized models of torch and torchao, and GGUF
measure.py  all of it for one model
comparison.py  models side by side, a line each and a line for what is made of it; it loads models,
            so it is imported by its own name
chart.py    quality against bytes, as a picture
"""

from .measure import Effort, Figures, measure
from .methods import Method, apply_method, method_names, parse_method
from .quality import perplexity

__all__ = [
    "Effort",
    "Figures",
    "Method",
    "apply_method",
    "measure",
    "method_names",
    "parse_method",
    "perplexity",
]
