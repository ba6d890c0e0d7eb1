# SPDX-License-Identifier: Apache-2.0
"""FlashSparseConfig: the `quantization_config` of a checkpoint, validated.

It is what is written to config.json and what a user passes to `from_pretrained`. It knows nothing
of transformers or vLLM; the integrations hand it to them.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import torch
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StrictInt,
    ValidationError,
    field_validator,
    model_validator,
)

from .formats import get_format, read_format
from .formats.values.dtypes import packable_dtype, parse_dtype
from .matching import matches
from .messages import complaint, one_line
from .names import AUTO, DEFAULT_FORMAT, DENSE, QUANT_METHOD
from .packed import FormatError, Scheme

logger = logging.getLogger(__name__)

PATTERN: Final = {"n": 2, "m": 4}
"""By their options, the zeros of codes whose checkpoint tells of none."""
HEADS: Final = {"int8": "1:1-L128-int8", "fp8": "1:1-L128-fp8", "lossless": "lossless"}
"""Output heads that keep every weight: by their names the formats in short."""
MAX_IGNORED: Final = 4096  # names and patterns; each is compared with every layer
MAX_LAYERS: Final = 100_000  # above the linear layers of any model
Name = Annotated[str, Field(max_length=1000)]  # of a module, or a pattern


def _spelt_out(data: Any) -> Any:
    """Keys of a configuration with a format's name and options in the place of a short name."""
    if not (isinstance(data, dict) and isinstance(data.get("format"), str)):
        return data
    given = data.get("options")
    name, options = read_format(data["format"], given if isinstance(given, dict) else None)
    return data if name == data["format"] else {**data, "format": name, "options": {**options}}


class LayerConfig(BaseModel):
    """Where one layer differs from the rest of the checkpoint.

    Attributes:
        format: A packed format, or "dense" for a layer that was left as it is.
        format_version: Version of that format; None: the checkpoint's, where the format is the
            same, else this release's.
        dtype: Dtype of the packed values; None: the checkpoint's.
        options: Options of the format; None: the checkpoint's, where the format is the same, else
            the format's defaults.
        reason: Why the layer differs, for people.
    """

    model_config = ConfigDict(extra="allow")

    format: str
    format_version: StrictInt | None = None
    dtype: str | None = None
    options: dict[str, Any] | None = None
    reason: Annotated[str, AfterValidator(one_line)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _read_short_name(cls, data: Any) -> Any:
        return _spelt_out(data)


class FlashSparseConfig(BaseModel):
    """How a checkpoint is packed, or is to be packed while it loads.

    Attributes:
        format: Packed format of the linear layers; "2:4", "2:4-int8" and the like are short for
            nm_vector with these options; "auto" chooses one for each layer, or leaves it dense,
            while a dense checkpoint is packed (see `dataflow.choice`).
        format_version: Version of that format.
        dtype: Dtype of the packed values, such as "bfloat16"; None means that of the model, or
            bfloat16 where the format does not take that.
        sparsity: Share of zeros: to reach, where `pruning` is given, else for information.
        pruning: What to do with a dense checkpoint before packing it: "none" where its zeros are
            already there, "magnitude" to drop the smallest weights of every layer, by the pattern
            where the format has one (to try things out; see `flashsparse prune` for better).
        ignore: Layers to leave dense: names, full or shortened from the left at a dot, or patterns
            after "re:" (see `matching.matches`). While a dense checkpoint is packed, the output
            head stays dense beside whatever is listed here; `ignore=[]`, or naming it in `layers`,
            packs it too.
        layers: Layers that differ from the rest, by name: a scheme of their own, or "dense".
            Stronger than `ignore`. Experts go by the name of the module or the parameter that
            holds all of them; a pattern after "re:" names layers of packed experts, too.
        head: "int8" or "fp8": the output head keeps every weight, in 8 bits with a scale a row;
            "lossless": bit for bit in 12 bits; whatever `ignore` says. Where it is tied to the
            embedding, one weight serves both. None: as the other fields say.
        options: Options of the format (nm_vector: n, m, vector_length, values, group, activations).
            n and m may be left out for a checkpoint that another tool quantized, which names them.
        dequantize: Unpack while loading and run dense. Not written to disk.
        batch: Sequences decoded at once, for which "auto" chooses. Not written to disk.
        experts: Whether the experts of a mixture run packed or are unpacked while they load: "auto"
            runs them packed on a CPU, and on a GPU where a grouped kernel multiplies them (2:4; see
            docs/kernels-experts.md); "packed" and "dense" do so everywhere. Not written to disk.
        decode_kernels: "early": in transformers, norms and rotary embeddings of a packed model on a
            GPU are a kernel of ours each; "default": they stay transformers'. Not written to disk.

    Keys of later versions are kept and warned of. A later `format_version`, and an option or dtype
    that a format does not know, are refused, for a layer too.

    Raises:
        FormatError: For a value that is not among those above, when it is given or assigned.
    """

    model_config = ConfigDict(extra="allow", validate_assignment=True)

    quant_method: Literal["flashsparse"] = QUANT_METHOD
    format: str = DEFAULT_FORMAT
    format_version: StrictInt = 1
    dtype: str | None = None
    sparsity: float | None = Field(default=None, ge=0.0, le=1.0)
    pruning: Literal["none", "magnitude"] = "none"
    ignore: Annotated[list[Name], Field(max_length=MAX_IGNORED)] = ["lm_head"]
    layers: Annotated[dict[Name, LayerConfig], Field(max_length=MAX_LAYERS)] = {}
    head: Literal["int8", "fp8", "lossless"] | None = None
    options: dict[str, Any] = {}
    dequantize: bool = Field(default=False, exclude=True)
    batch: int = Field(default=8, ge=1, le=1 << 16, exclude=True)
    experts: Literal["auto", "packed", "dense"] = Field(default="auto", exclude=True)
    decode_kernels: Literal["early", "default"] = Field(default="early", exclude=True)

    if not TYPE_CHECKING:  # where the fields are the arguments

        def __init__(self, **data: Any):
            try:
                super().__init__(**data)
            except ValidationError as error:
                raise FormatError(complaint(error)) from None

        def __setattr__(self, name: str, value: Any) -> None:
            try:
                super().__setattr__(name, value)
            except ValidationError as error:
                raise FormatError(complaint(error)) from None

    @field_validator("pruning", mode="before")
    @classmethod
    def _name_other_pruning(cls, value: Any) -> Any:
        if value not in ("none", "magnitude"):
            raise ValueError(
                f'loading prunes by "magnitude" alone, not {value!r:.100}. '
                "Remedy: `flashsparse prune` knows other methods; load what it writes"
            )
        return value

    @model_validator(mode="before")
    @classmethod
    def _read_other_names(cls, data: Any) -> Any:
        """Reads the lists of ignored layers under the names that other methods use.

        And ignores `prompts`, a setting of earlier builds.
        """
        if not isinstance(data, dict):
            return data
        data = dict(_spelt_out(data))
        if data.pop("prompts", "own") != "own":
            logger.warning(
                'prompts="cusparselt" is ignored: cuSPARSELt is no longer used, and prompts of 2:4 '
                "layers are multiplied from the one copy of the weight. Leave prompts out"
            )
        for other in ("modules_to_not_convert", "ignored_layers"):
            if other not in data:
                continue
            own, more = data.get("ignore", ["lm_head"]), data.pop(other) or []
            if not all(isinstance(each, list | tuple) for each in (own, more)):
                raise ValueError(f"ignore and {other} must be lists of names")
            if len(own) + len(more) > MAX_IGNORED:
                raise ValueError(f"ignore and {other} have more than {MAX_IGNORED} entries")
            data["ignore"] = [*own, *(each for each in more if each not in own)]
        return data

    @model_validator(mode="after")
    def _check(self) -> FlashSparseConfig:
        matches("", self.ignore)  # compiles the patterns
        if self.is_open and self.options:
            raise ValueError(f'format="{AUTO}" chooses the options, too: leave them out')
        own = LayerConfig(format=self.format)
        if self._lacks_pattern():
            own.options = {**PATTERN, **self.options}  # to judge what is named beside it
        scheme = self._scheme(own, ())
        for name, layer in self.layers.items():
            try:
                self._scheme(layer, ())
            except FormatError as error:
                raise ValueError(f"layer {name!r}: {error}") from None
        has_pattern = scheme is not None and scheme.format.pattern(scheme) is not None
        if self.pruning != "none" and self.sparsity is None and not has_pattern:
            raise ValueError(f'pruning="{self.pruning}" needs sparsity=, for example sparsity=0.5')
        if self.__pydantic_extra__:
            logger.warning(
                "keys of quantization_config that this version does not know are kept unread: %s",
                one_line(", ".join(sorted(self.__pydantic_extra__))),
            )
        return self

    def _lacks_pattern(self) -> bool:
        """Whether the format needs a pattern, and nothing of one is named."""
        if self.is_open or self.format == DENSE:
            return False
        fields = get_format(self.format).Options.model_fields
        return all(n in fields and fields[n].is_required() for n in PATTERN) and not (
            PATTERN.keys() & self.options
        )

    def experts_stay_dense(self, has_kernel: bool) -> bool:
        """Whether experts run dense, whatever the checkpoint holds.

        Args:
            has_kernel: Whether packed ones would run by kernels for them (`experts.why_dense`).
        """
        return self.experts == "dense" or (self.experts == "auto" and not has_kernel)

    def require_pattern(self) -> None:
        """Raises FormatError where the format needs a pattern and none is named.

        Only a checkpoint that another tool quantized does without: it brings its own, and is 2:4
        where it tells of none.
        """
        if self._lacks_pattern():
            self._scheme(LayerConfig(format=self.format), ())

    def place_head(self, name: str) -> None:
        """Gives the output head the scheme that `head` asks for, also where `layers` has it dense.

        Raises:
            FormatError: Where `layers` asks for another one.
        """
        if self.head is None:
            return
        wanted = LayerConfig(format=HEADS[self.head])
        own = self.layers.get(name)
        if own is None or own.format == DENSE:
            self.layers[name] = wanted
        elif (own.format, own.options) != (wanted.format, wanted.options):
            raise FormatError(
                f"layer {name!r}: head={self.head!r} and layers= ask for different formats of the "
                "output head. Remedy: leave one of the two out"
            )

    def to_dict(self) -> dict[str, Any]:
        """Returns what belongs in config.json: unknown keys included, empty ones left out."""
        data = self.model_dump(mode="json", exclude_none=True)
        # `ignore: []` stays: to leave it out would mean the default, ["lm_head"].
        return {key: value for key, value in data.items() if value != {}}

    @property
    def is_open(self) -> bool:
        """Whether the format of each layer is yet to be chosen by its weight."""
        return self.format == AUTO

    def is_open_for(self, *names: str) -> bool:
        """Whether that of a layer is, by the names that it goes by."""
        return self.is_open and not any(name in self.layers for name in names)

    def refuse_open(self, where: str) -> None:
        """Raises FormatError for a packed checkpoint that does not say how it is packed."""
        if self.is_open:
            raise FormatError(
                f'{where}: format "{AUTO}" is what to choose while a dense checkpoint is packed, '
                "and a packed one names its formats. Remedy: fetch it again, or convert the dense "
                "model with `flashsparse convert`"
            )
        self.require_pattern()

    def settled(self, chosen: Mapping[str, tuple[Scheme | None, str]]) -> FlashSparseConfig:
        """The configuration once each layer's format is chosen: that of most layers, and the rest.

        Args:
            chosen: By the name of a layer, its scheme, or None for a dense one, and why.
        """
        packed = Counter(scheme for scheme, _ in chosen.values() if scheme is not None)
        default = get_format(DEFAULT_FORMAT).scheme(torch.bfloat16)
        (most, _), *_ = packed.most_common(1) or [(default, 0)]
        own = {}
        for name, (scheme, why) in chosen.items():
            if scheme is None:
                own[name] = LayerConfig(format=DENSE, reason=why)
            elif scheme != most:
                own[name] = LayerConfig(format=scheme.format.name, options=scheme.values)
        data = self.to_dict() | {"format": most.format.name, "options": most.values}
        data |= {"format_version": most.format.version, "batch": self.batch}
        return FlashSparseConfig(**data | {"layers": {**own, **self.layers}} | self.while_loading)

    def scheme_of(self, *names: str, dtypes: Sequence[torch.dtype] = ()) -> Scheme | None:
        """Returns the scheme of a layer that `ignore` does not mean, or None for a dense one.

        Of a layer that the format is yet to be chosen for, it is one of the default format, whose
        dtype holds in any case.

        Args:
            *names: The names that the layer goes by, in the model and in the file.
            dtypes: What to pack in where the configuration leaves that open, in order of
                preference; bfloat16 where the format takes none of them. Only a checkpoint that is
                being packed leaves it open.

        Raises:
            FormatError: Where neither the configuration nor `dtypes` names a dtype.
        """
        default = LayerConfig(format=self.format)
        layer = self.named(*names) or default
        if layer.format != DENSE and not dtypes and (layer.dtype or self.dtype) is None:
            raise FormatError(
                "the quantization_config of this checkpoint does not say which dtype its values "
                'have. Remedy: add "dtype": "bfloat16" (or "float16") to it in config.json'
            )
        return self._scheme(layer, dtypes)

    def named(self, *names: str) -> LayerConfig | None:
        """What `layers` has for a layer: by one of its names, or else by a pattern for the first.

        Args:
            *names: The names that it goes by, the most exact one first.
        """
        if own := next((self.layers[name] for name in names if name in self.layers), None):
            return own
        patterns = (each for each in self.layers if each.startswith("re:"))
        return next((self.layers[each] for each in patterns if matches(names[0], (each,))), None)

    @property
    def while_loading(self) -> dict[str, Any]:
        """By their names the fields that say how a checkpoint is run, and nothing of the file."""
        return {name: getattr(self, name) for name in ("dequantize", "experts", "decode_kernels")}

    @property
    def formats(self) -> list[str]:
        """Names of the packed formats that the configuration names, that of most layers first."""
        own = [layer.format for layer in self.layers.values() if layer.format != DENSE]
        return list(dict.fromkeys([self.format, *own]))

    def _scheme(self, layer: LayerConfig, dtypes: Sequence[torch.dtype]) -> Scheme | None:
        if layer.format == DENSE:
            return None
        alike = layer.format == self.format
        format = get_format(DEFAULT_FORMAT if alike and self.is_open else layer.format)
        named = layer.dtype or self.dtype
        dtype = parse_dtype(named, format.dtypes) if named else packable_dtype(format, *dtypes)
        options = self.options if layer.options is None and alike else layer.options
        version = layer.format_version
        if version is None and alike and not self.is_open:
            version = self.format_version
        return format.scheme(dtype, options, version)

    # transformers calls the rest by these names; see integrations/hf/__init__.py.

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> FlashSparseConfig:
        try:
            return cls(**config_dict, **kwargs)
        except FormatError as error:
            raise FormatError(f"quantization_config: {error}") from None

    def get(self, key: str, default: Any = None) -> Any:
        """Behaves as dict.get, which transformers calls on a config that it is given."""
        return getattr(self, key, default)

    def get_loading_attributes(self) -> dict[str, Any]:
        """What a user may change when loading a checkpoint that is packed already."""
        head = {} if self.head is None else {"head": self.head}
        return self.while_loading | head

    def to_json_string(self, use_diff: bool = True) -> str:
        return json.dumps(self.to_dict(), indent=2, sort_keys=True) + "\n"
