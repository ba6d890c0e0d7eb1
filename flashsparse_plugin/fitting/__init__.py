# SPDX-License-Identifier: Apache-2.0
"""The best model of so many bits a weight: zeros, dense blocks and fewer bits, chosen by layer."""

from .choices import CHOICES, Choice
from .knapsack import choose
from .losses import Measured, measure_losses
from .recipe import LayerRecipe, Recipe
from .speed import estimated_speed

__all__ = [
    "CHOICES",
    "Choice",
    "LayerRecipe",
    "Measured",
    "Recipe",
    "choose",
    "estimated_speed",
    "measure_losses",
]
