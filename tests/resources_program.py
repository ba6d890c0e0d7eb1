# SPDX-License-Identifier: Apache-2.0
"""kernels/resources.py as a module: kernels/ is no package."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

PROGRAM = Path(__file__).parents[1] / "kernels" / "resources.py"
spec = importlib.util.spec_from_file_location("resources", PROGRAM)
resources = sys.modules["resources"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(resources)
