# SPDX-License-Identifier: Apache-2.0
"""What serve.py compares: the same model served in several ways, the baseline first."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flashsparse_plugin.formats.pattern.options import PatternOptions

AUTO = "auto"  # in the place of a format: what should be fastest for each layer
COMPARISONS = ("weights", "codes", "patterns", "step", "experts", "fewer", "attention")
FOLLOWING = ("patterns", "step", "experts", "fewer")  # with weights that follow patterns
# Of tiled_bitmap: zeros anywhere.
CODES = {
    "tiled_bitmap": {},
    "int8": {"values": "int8"},
    "int8-int8": {"values": "int8", "activations": "int8"},
}
TWO_OF_FOUR_FP8 = PatternOptions(n=2, m=4, values="fp8_e4m3")
FP8_ON_BOTH_SIDES = TWO_OF_FOUR_FP8.model_copy(update={"activations": "fp8_e4m3"})
TWO_OF_FOUR_INT4 = PatternOptions(n=2, m=4, values="int4", group=128)
TWO_OF_FOUR_INT8 = PatternOptions(n=2, m=4, values="int8")
VECTORS = {"sparse_method": "nm_vector"}
# 2:4 beside dense blocks, a quarter of all: three of eight weights are zeros.
BESIDE_DENSE = {"sparse_method": "hybrid_24"}
FOUR_BITS = {"values": "int4", "group": 64}
QUARTER_DENSE = {"sparsity": 0.375, "decode_kernels": "early"}
# With vLLM's own attention: what its users have without us.
VLLM = {"sparse_method": "none", "decode_attention": "default"}
VLLM_FP8 = VLLM | {"quantization": "fp8"}
# Weights and inputs in fp8, the inputs by a scale that the checkpoint has: nothing measures them.
STATIC_FP8 = VLLM | {
    "hf_overrides": json.dumps(
        {"quantization_config": {"quant_method": "fp8", "activation_scheme": "static"}}
    ),
}
# What stands around the products: settings of the plugin, and how tables call them.
AROUND: dict[str, Mapping[str, str]] = {
    "": {"decode_kernels": "default"},
    ", early": {"decode_kernels": "early"},
    ", early, head": {"decode_kernels": "early", "head": "int8"},
    ", early, head, sampling by vLLM": {
        "decode_kernels": "early",
        "head": "int8",
        "decode_sampling": "default",
    },
}
PATTERNS = (
    PatternOptions(n=2, m=4),
    PatternOptions(n=8, m=32, vector_length=32),
    TWO_OF_FOUR_FP8,
    TWO_OF_FOUR_INT4,
    PatternOptions(n=8, m=32, vector_length=32, values="int8"),
)


@dataclass(frozen=True)
class Method:
    """A way to serve a model.

    Attributes:
        name: In results and on the command line.
        label: As tables call it.
        options: Of vLLM, as its Python interface spells them.
        settings: Of our plugin, its part of vLLM's additional_config.
        gpus: Among which the model is divided.
        exact: Whether it has to generate the baseline's tokens.
        like: The method with the same weights whose tokens it has to generate, if another.
    """

    name: str
    label: str
    options: Mapping[str, str]
    settings: Mapping[str, Any] = field(default_factory=dict)
    gpus: int = 1
    exact: bool = True
    like: str | None = None

    def flags(self, zeros: float | None) -> list[str]:
        """The options of `vllm serve`; `zeros` is their share where it makes the weights up."""
        found = [
            text
            for name, value in self.options.items()
            for text in (f"--{name.replace('_', '-')}", value)
        ]
        settings = dict(self.settings)
        if zeros is not None and self.options.get("sparse_method") != "none":
            settings.setdefault("sparsity", zeros)
        if settings:
            found += ["--additional-config", json.dumps({"flashsparse": settings})]
        return found


def methods_of(arguments: argparse.Namespace) -> list[Method]:
    """What is compared, the baseline first."""
    dense = {"sparse_method": "none"}
    if arguments.compare == "weights":
        gpus = arguments.gpus
        on = f" on {gpus}" if gpus > 1 else ""
        found = [Method("none", f"dense{on}", dense, gpus=gpus)]
        for format in arguments.format:
            sparse = {"sparse_method": format}
            found.append(Method(format, f"{format}{on}", sparse, gpus=gpus))
            if gpus > 1:
                found.append(Method(f"{format}-on-1", f"{format} on 1", sparse))
        return found
    if arguments.compare == "codes":
        anywhere = {"sparse_method": "tiled_bitmap"}
        fp8 = Method("fp8", "fp8", dense | {"quantization": "fp8"}, exact=False)
        return [
            Method("none", "dense", dense),
            fp8,
            *(
                Method(
                    name,
                    name.replace("-", " x "),
                    anywhere,
                    {"options": options},
                    exact=not options,
                )
                for name, options in CODES.items()
            ),
        ]
    if arguments.compare == "fewer":
        fp8 = dense | {"quantization": "fp8"}
        settings = {"options": TWO_OF_FOUR_FP8.model_dump()}
        gpus = arguments.gpus
        return [
            Method("none", f"dense on {gpus}", dense, gpus=gpus),
            Method("fp8", "fp8 on 1", fp8, exact=False),
            Method("2of4-fp8_e4m3", "2:4 fp8 on 1", VECTORS, settings, exact=False),
        ]
    if arguments.compare in ("step", "experts"):
        methods = [Method("none", "dense", VLLM), Method("fp8", "fp8", VLLM_FP8, exact=False)]
    if arguments.compare == "experts":
        for options in (TWO_OF_FOUR_INT8, TWO_OF_FOUR_INT4):
            own = {"options": options.model_dump(), "experts": "packed"}
            name = f"2of4-{options.values}-experts"
            methods.append(Method(name, options.title, VECTORS, own, exact=False))
        return methods
    if arguments.compare == "step":
        if arguments.dummy:
            methods.append(Method("fp8-static", "fp8, static", STATIC_FP8, exact=False))
        exact = {"sparse_method": "lossless"}
        methods.append(Method("lossless", "lossless", exact, {"sparsity": 0.0}))
        exact = {"sparse_method": "2:4-e4m7"}
        methods.append(Method("2of4-e4m7", "2:4 e4m7", exact, exact=False))
        for options in (TWO_OF_FOUR_FP8, TWO_OF_FOUR_INT4):
            for around, settings in AROUND.items():
                label = options.title + around
                plain = f"2of4-{options.values}"
                name = plain + around.replace(", ", "-").replace(" ", "-")
                like = plain if around and "head" not in settings else None
                own = {"options": options.model_dump(), **settings}
                methods.append(Method(name, label, VECTORS, own, exact=False, like=like))
        # As checkpoints of FP8-dynamic ask for it: both sides in fp8, as vLLM's fp8 has them.
        own = {"options": FP8_ON_BOTH_SIDES.model_dump(), "decode_kernels": "early"}
        label = "2:4 fp8 x fp8, early"
        methods.append(Method("2of4-fp8-fp8", label, VECTORS, own, exact=False))
        for values, options in (("fp8", {"values": "fp8_e4m3"}), ("int4", FOUR_BITS)):
            own = {"options": options, **QUARTER_DENSE}
            label = f"2:4 + 25% dense, {values}, early"
            methods.append(Method(f"hybrid-{values}", label, BESIDE_DENSE, own, exact=False))
        return methods
    if arguments.compare == "patterns":
        methods = [
            Method("none", "dense", dense, gpus=arguments.gpus),
            Method("fp8", "fp8", dense | {"quantization": "fp8"}, {}, arguments.gpus, exact=False),
        ]
        for options in PATTERNS:
            name = f"{options.n}of{options.m}"
            name += f"-{options.values}" if options.value_type else ""
            settings = {"options": options.model_dump()}
            exact = not options.value_type
            own = (VECTORS, settings, arguments.gpus, exact)
            methods.append(Method(name, options.title, *own))
        return methods
    return [
        Method("default", "vLLM", dense | {"decode_attention": "default"}),
        Method("unified_max", "ours", dense | {"decode_attention": "unified_max"}),
    ]
