# SPDX-License-Identifier: Apache-2.0
"""The two forms in which nm_vector runs on a CPU; never on disk.

Entries of 16 rows lie side by side, so that an entry is one register. In nm_panels the rows share
their columns; in nm_rows, for codes alone, each has its own. The layout of both is in
kernels/formats/cpu_panels.h.
"""

from .nm_panels import NMPanels
from .nm_rows import NMRows

__all__ = ["NMPanels", "NMRows"]
