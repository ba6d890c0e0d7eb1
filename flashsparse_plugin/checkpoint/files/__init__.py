# SPDX-License-Identifier: Apache-2.0
"""What lies in a model directory: headers of its files, where they may be, and what is no model."""
