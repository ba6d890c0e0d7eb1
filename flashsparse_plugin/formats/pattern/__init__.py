# SPDX-License-Identifier: Apache-2.0
"""Formats of weights that follow an N:M pattern, whose vectors of L rows share their columns."""
