# SPDX-License-Identifier: Apache-2.0
"""LoRA on what is kept: low-rank updates, trained to predict as the dense model does.

A pruned weight W works as W + M * (B A), where M is 1 at the kept elements, so that merging B A
into W brings no zero back (Hu et al., "LoRA", 2021, arXiv 2106.09685; with the mask, Munoz et al.,
"SQFT", 2024, arXiv 2410.03750). The loss is the divergence from the dense model's distribution of
the next token (Hinton et al., 2015, arXiv 1503.02531), which no label can be wrong about.

The sum is rounded to the dtype that is stored in each forward pass: what is trained is what will be
stored. The models themselves are not changed before the end.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import kl_div, log_softmax

from ..modules import bias_of, linear_modules, shape_of, stored_weight, weight_of
from .calibration import calibration_batches
from .masks import apply_mask_
from .relay import evaluating, replaced_forward

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_JUDGED = 8  # windows, of the divergence before and after
_SEED = 0


@dataclass(frozen=True)
class LoRA:
    """Recovery by training low-rank updates of the kept weights.

    Attributes:
        rank: Of each update, or the smaller side of a weight that is narrower.
        steps: Of the optimizer, Adam.
        rate: Learning rate of the first step, from which it falls to 0 in a line.
        batch: Calibration windows a step.

    Raises:
        ValueError: For a number that trains nothing.
    """

    rank: int = 16
    steps: int = 100
    rate: float = 1e-3
    batch: int = 2

    def __post_init__(self) -> None:
        if min(self.rank, self.steps, self.batch) < 1:
            raise ValueError(
                f"rank is {self.rank}, steps {self.steps} and batch {self.batch}: they must be "
                "1 or more"
            )
        if not 0 < self.rate < 1:
            raise ValueError(f"the rate is {self.rate}, but must be above 0 and below 1")


class _Linear(torch.autograd.Function):
    """x times the transpose of the updated weight, which is made anew for the backward pass.

    So no layer's updated weight is in memory for longer than its own product takes.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, up: Tensor, down: Tensor, stored: torch.dtype
    ) -> Tensor:
        ctx.save_for_backward(x, weight, up, down)
        ctx.stored = stored
        return x @ _updated(weight, up, down, stored).T

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, Tensor, Tensor, None]:
        x, weight, up, down = ctx.saved_tensors
        (gradient,) = gradients
        own = gradient.flatten(0, -2).T @ x.flatten(0, -2)
        own = apply_mask_(own, weight != 0).to(up.dtype)
        updated = _updated(weight, up, down, ctx.stored)
        return gradient @ updated, None, own @ down.T, up.T @ own, None


def _updated(weight: Tensor, up: Tensor, down: Tensor, stored: torch.dtype) -> Tensor:
    """weight + up @ down at the elements of the weight that are not zero, rounded to a dtype."""
    updated = (up @ down).add_(weight).to(stored).to(weight.dtype)
    return apply_mask_(updated, weight != 0)


class Training:
    """The updates of a pruned model, their optimizer, and how far both are.

    Args:
        pruned: The pruned model. Its weights stay as they are until `merge_`.
        dense: The model before it was pruned.
        names: The linear layers to update.
        calibration: Token ids, int64 [samples, length].
        method: How to train.
        stored: The dtype that the weights will be stored in; None: that of the pruned model.

    Attributes:
        step: Steps that are done.
        before: Divergence of the pruned model, in nats a token.

    Raises:
        ValueError: For calibration that the models cannot take, and for a rank that no layer's is
            above.
    """

    def __init__(
        self,
        pruned: PreTrainedModel,
        dense: PreTrainedModel,
        names: list[str],
        calibration: Tensor,
        method: LoRA,
        stored: torch.dtype | None = None,
    ) -> None:
        self.pruned, self.dense, self.method, self.stored = pruned, dense, method, stored
        self.windows = torch.cat(calibration_batches(pruned, calibration, len(calibration)))
        calibration_batches(dense, calibration, len(calibration))
        linears = linear_modules(pruned)
        widest = max(names, key=lambda name: min(shape_of(linears[name])))
        shape = shape_of(linears[widest])
        if method.rank >= min(shape):
            raise ValueError(
                f"an update of rank {method.rank} is not low-rank for any layer: the largest is "
                f"{widest}, of shape {list(shape)}. Choose a rank below {min(shape)}"
            )
        # Layers that share a weight share its update.
        first: dict[int, str] = {}
        self.layers = {
            name: (linears[name], first.setdefault(id(stored_weight(linears[name])), name))
            for name in names
        }
        self.weights = {name: weight_of(linears[name]).detach() for name in first.values()}
        self.parameters: dict[str, Tensor] = {}
        generator = torch.Generator().manual_seed(_SEED)
        for name, weight in self.weights.items():
            rows, columns = weight.shape
            rank = min(method.rank, rows, columns)
            bound = 1 / math.sqrt(columns)
            down = torch.empty(rank, columns).uniform_(-bound, bound, generator=generator)
            self.parameters[f"{name}.down"] = down.to(weight.device).requires_grad_()
            up = torch.zeros(rows, rank, device=weight.device)
            self.parameters[f"{name}.up"] = up.requires_grad_()
        self.optimizer = torch.optim.Adam(self.parameters.values(), lr=method.rate)
        passes = -(-method.steps * method.batch // len(self.windows))
        orders = [torch.randperm(len(self.windows), generator=generator) for _ in range(passes)]
        order = torch.cat(orders)[: method.steps * method.batch]
        self.order = order.view(method.steps, method.batch)
        self.step, self.before = 0, math.nan

    def run(self) -> Iterator[int]:
        """Trains from where it is, and yields the number of steps after each."""
        if math.isnan(self.before):
            self.before = self.divergence()
        while self.step < self.method.steps:
            share = 1 - self.step / self.method.steps
            self.optimizer.param_groups[0]["lr"] = self.method.rate * share
            self.optimizer.zero_grad()
            with torch.enable_grad():
                loss = self._loss(self.windows[self.order[self.step]])
                loss.backward()
            if not bool(loss.isfinite()):
                raise ValueError(
                    f"the loss of step {self.step + 1} is {float(loss)}: choose a rate below "
                    f"{self.method.rate:g}, and load the models in bfloat16 or float32"
                )
            self.optimizer.step()
            self.step += 1
            yield self.step

    @torch.no_grad()
    def divergence(self) -> float:
        """The mean divergence from the dense model over a few windows, in nats a token."""
        losses = [float(self._loss(window[None])) for window in self.windows[:_JUDGED]]
        return sum(losses) / len(losses)

    @torch.no_grad()
    def merge_(self) -> tuple[float, float]:
        """Adds the updates to the kept weights, unless the model was better without.

        Returns:
            The divergences before and after.
        """
        after = self.divergence()
        if not after < self.before:
            return self.before, self.before
        for name, weight in self.weights.items():
            weight.copy_(_updated(weight, *self._update_of(name), self.stored or weight.dtype))
        return self.before, after

    def state(self) -> dict[str, Tensor]:
        """All that the next step depends on, on the CPU; `load` takes it."""
        held = self._position()
        for name, parameter in self.parameters.items():
            own = self.optimizer.state[parameter]
            held[name] = parameter.detach()
            held |= {f"{name}.{key}": own[key] for key in ("exp_avg", "exp_avg_sq")}
        return {name: tensor.cpu().contiguous() for name, tensor in held.items()}

    @torch.no_grad()
    def load(self, state: Mapping[str, Tensor]) -> None:
        """Goes on from a state that another run of the same training kept.

        Raises:
            ValueError: If it is not one. Nothing has changed then.
        """
        moments = ("", ".exp_avg", ".exp_avg_sq")
        like = {f"{name}{key}": p for name, p in self.parameters.items() for key in moments}
        like |= self._position()
        if state.keys() != like.keys():
            raise ValueError("it has other tensors")
        for name, tensor in state.items():
            if tensor.shape != like[name].shape or tensor.dtype != like[name].dtype:
                raise ValueError(f"{name} has another shape or dtype")
            if not bool(tensor.isfinite().all()):
                raise ValueError(f"{name} is not finite")
        step = int(state["step"])
        if not 1 <= step <= self.method.steps:
            raise ValueError(f"it has done {step} steps of {self.method.steps}")
        self.step, self.before = step, float(state["before"])
        for name, parameter in self.parameters.items():
            parameter.copy_(state[name])
            self.optimizer.state[parameter] = {
                "step": torch.tensor(float(step)),
                "exp_avg": state[f"{name}.exp_avg"].to(parameter.device).clone(),
                "exp_avg_sq": state[f"{name}.exp_avg_sq"].to(parameter.device).clone(),
            }

    def _position(self) -> dict[str, Tensor]:
        """How far it is, beside the parameters."""
        before = torch.tensor(self.before, dtype=torch.float64)
        return {"step": torch.tensor(self.step), "before": before}

    def _update_of(self, name: str) -> tuple[Tensor, Tensor]:
        return self.parameters[f"{name}.up"], self.parameters[f"{name}.down"]

    @contextmanager
    def _updating(self) -> Iterator[None]:
        """The layers multiply by their updated weights for a while."""

        def forward(linear: nn.Module, name: str, x: Tensor) -> Tensor:
            weight = self.weights[name]
            stored = self.stored or weight.dtype
            product = _Linear.apply(x, weight, *self._update_of(name), stored)
            assert isinstance(product, Tensor)
            bias = bias_of(linear)
            return product if bias is None else product + bias

        with ExitStack() as stack:
            for linear, name in self.layers.values():
                stack.enter_context(replaced_forward(linear, partial(forward, linear, name)))
            yield

    def _loss(self, windows: Tensor) -> Tensor:
        """The mean over tokens of the divergence KL(dense | pruned) of their next-token laws."""
        with evaluating(self.dense), torch.no_grad():
            device = self.dense.device
            wanted = self.dense(input_ids=windows.to(device), use_cache=False).logits
        weights = {name: each.detach() for name, each in self.pruned.named_parameters()}
        given = {"input_ids": windows, "use_cache": False}
        with evaluating(self.pruned), self._updating():
            logits = functional_call(self.pruned, weights, kwargs=given).logits
        found = log_softmax(logits.float(), dim=-1)
        law = log_softmax(wanted.to(logits.device).float(), dim=-1)
        return kl_div(found, law, reduction="sum", log_target=True) / windows.numel()
