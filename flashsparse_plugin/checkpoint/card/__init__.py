# SPDX-License-Identifier: Apache-2.0
"""The model card of a directory that is written."""
