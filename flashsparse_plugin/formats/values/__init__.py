# SPDX-License-Identifier: Apache-2.0
"""How values are stored: as they are, or as codes with scales, and what codes multiply."""
