# SPDX-License-Identifier: Apache-2.0
"""Formats that keep any weight, wherever its zeros are."""
