# SPDX-License-Identifier: Apache-2.0
import pytest
from toy_format import Toy, ToyRuntime

from flashsparse_plugin.formats import registry


@pytest.fixture
def toy(monkeypatch):
    """The toy format, known for the length of a test."""
    monkeypatch.setattr(registry, "_FORMATS", dict(registry._FORMATS))
    for format in (Toy(), ToyRuntime()):
        registry.register_format(format)
    return Toy()
