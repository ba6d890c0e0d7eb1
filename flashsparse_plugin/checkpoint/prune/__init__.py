# SPDX-License-Identifier: Apache-2.0
"""Writing dense checkpoints with the zeros of a pruned model."""
