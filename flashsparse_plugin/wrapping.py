# SPDX-License-Identifier: Apache-2.0
"""Wrapping a method or function of another package, once, where it has no hook for what we need."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

_MARK = "wrapped_by_flashsparse"


def wrap_once(owner: Any, name: str, wrapper: Callable[[Callable[..., Any]], Any]) -> None:
    """Replaces a method or a function by `wrapper(method)`; doing it again changes nothing.

    Goes by a mark of our own: the package may have wrapped the method, too.

    Args:
        owner: The class or module. A method that is static there, or bound to it, needs no object
            after.
        name: The method or function.
        wrapper: Makes the new one of the old one.

    Raises:
        AttributeError: Where the owner has no such method.
    """
    inner = getattr(owner, name)
    if getattr(inner, _MARK, False):
        return
    outer = functools.wraps(inner)(wrapper(inner))
    setattr(outer, _MARK, True)
    static = isinstance(vars(owner).get(name), staticmethod | classmethod)
    setattr(owner, name, staticmethod(outer) if static else outer)
