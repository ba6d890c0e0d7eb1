# SPDX-License-Identifier: Apache-2.0
"""The best model of so many bits a weight: zeros, dense blocks and fewer bits, chosen by layer."""

from .by_bits import choose_by_bits
from .choices import CHOICES, Choice
from .losses import Measured, measure_losses
from .recipe import LayerRecipe, Recipe
from .speed import estimated_speed

__all__ = [
    "CHOICES",
    "Choice",
    "LayerRecipe",
    "Measured",
    "Recipe",
    "choose_by_bits",
    "estimated_speed",
    "measure_losses",
]
