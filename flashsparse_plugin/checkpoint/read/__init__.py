# SPDX-License-Identifier: Apache-2.0
"""A model directory as it is read: its tensors, and the layers of the model that they are in."""
