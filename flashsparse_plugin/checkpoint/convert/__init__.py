# SPDX-License-Identifier: Apache-2.0
"""Making a packed model directory of a dense one, and telling what that would bring."""
