# SPDX-License-Identifier: Apache-2.0
"""LoRA on what is kept: low-rank updates, trained to predict as the dense model does.

A pruned weight W works as W + M * (B A), where M is 1 at the kept elements, so that merging B A
into W brings no zero back (Hu et al., "LoRA", 2021, arXiv 2106.09685; with the mask, Munoz et al.,
"SQFT", 2024, arXiv 2410.03750). The loss is the divergence from the dense model's distribution of
the next token (Hinton et al., 2015, arXiv 1503.02531), which no label can be wrong about.

The sum is rounded to the dtype of the model in each forward pass: what is trained is what will be
stored. The models themselves are not changed before the end.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn.functional import kl_div, log_softmax

from ..modules import linear_modules, shape_of, stored_weight
from .calibration import calibration_batches
from .relay import evaluating

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


class _Update(torch.autograd.Function):
    """weight + up @ down at the elements of the weight that are not zero, in the weight's dtype."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, up: Tensor, down: Tensor) -> Tensor:
        ctx.save_for_backward(weight, up, down)
        updated = (weight.float() + up @ down).to(weight.dtype)
        return updated.masked_fill_(weight == 0, 0)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor, Tensor]:
        weight, up, down = ctx.saved_tensors
        own = gradients[0].float().masked_fill(weight == 0, 0)
        return None, own @ down.T, up.T @ own


class Training:
    """The updates of a pruned model, their optimizer, and how far both are.

    Args:
        pruned: The pruned model. Its weights stay as they are until `merge_`.
        dense: The model before it was pruned.
        names: The linear layers to update.
        calibration: Token ids, int64 [samples, length].
        method: How to train.

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
    ) -> None:
        self.pruned, self.dense, self.method = pruned, dense, method
        self.windows = torch.cat(calibration_batches(pruned, calibration, len(calibration)))
        calibration_batches(dense, calibration, len(calibration))
        linears = linear_modules(pruned)
        widest = max(names, key=lambda name: min(shape_of(linears[name])))
        shape = shape_of(linears[widest])
        if method.rank >= min(shape):
            raise ValueError(
                f"an update of rank {method.rank} is low for no layer: that of the highest rank is "
                f"{widest}, of shape {list(shape)}. Choose a rank below {min(shape)}"
            )
        # Once each, if layers share one: functional_call replaces it in all of them.
        unique = {id(stored_weight(linears[name])): name for name in reversed(names)}
        self.weights = {
            name: stored_weight(linears[name]).detach() for name in reversed(unique.values())
        }
        self.parameters: dict[str, Tensor] = {}
        generator = torch.Generator().manual_seed(_SEED)
        for name, weight in self.weights.items():
            rows, columns = weight.shape  # as it is stored, be that transposed
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
        for name, updated in self._updated().items():
            self.weights[name].copy_(updated)
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

    def _updated(self) -> dict[str, Tensor]:
        """The weights with their updates, as they would be stored."""
        found = {}
        for name, weight in self.weights.items():
            up, down = self.parameters[f"{name}.up"], self.parameters[f"{name}.down"]
            updated = _Update.apply(weight, up, down)
            assert isinstance(updated, Tensor)
            found[name] = updated
        return found

    def _loss(self, windows: Tensor) -> Tensor:
        """The mean over tokens of the divergence KL(dense | pruned) of their next-token laws."""
        with evaluating(self.dense), torch.no_grad():
            device = self.dense.device
            wanted = self.dense(input_ids=windows.to(device), use_cache=False).logits
        weights = {name: each.detach() for name, each in self.pruned.named_parameters()}
        weights |= {f"{name}.weight": updated for name, updated in self._updated().items()}
        given = {"input_ids": windows, "use_cache": False}
        with evaluating(self.pruned):
            logits = functional_call(self.pruned, weights, kwargs=given).logits
        found = log_softmax(logits.float(), dim=-1)
        law = log_softmax(wanted.to(logits.device).float(), dim=-1)
        return kl_div(found, law, reduction="sum", log_target=True) / windows.numel()
