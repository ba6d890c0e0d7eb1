# SPDX-License-Identifier: Apache-2.0
"""What no linter finds in the sources."""

import ast
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDERS = ("flashsparse_plugin", "integrations", "tests", "benchmarks", "demo", "docs", "examples")


def strings_without_use(text: str) -> list[int]:
    """Lines of strings that are statements and document nothing.

    A message in two lines that lacks its parentheses loses the second of them so.
    """
    found = []
    for node in ast.walk(ast.parse(text)):
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            for index, each in enumerate(block if isinstance(block, list) else []):
                value = each.value if isinstance(each, ast.Expr) else None
                is_text = isinstance(value, ast.Constant) and isinstance(value.value, str)
                if isinstance(value, ast.JoinedStr) or (
                    is_text and not _documents(node, block[index - 1] if index else None)
                ):
                    found.append(each.lineno)
    return sorted(found)


def _documents(node: ast.AST, before: ast.stmt | None) -> bool:
    """Whether a string in the body of a node says what that is, or what is assigned before it."""
    if before is None:
        return isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    if not isinstance(before, ast.Assign | ast.AnnAssign):
        return False
    targets = before.targets if isinstance(before, ast.Assign) else [before.target]
    of_self = all(isinstance(target, ast.Attribute) for target in targets)
    return of_self or isinstance(node, ast.Module | ast.ClassDef)


def test_every_string_is_used():
    files = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    assert len(files) > 300
    found = {str(path.relative_to(ROOT)): strings_without_use(path.read_text()) for path in files}
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_a_lost_half_of_a_message_is_found():
    text = (
        '"""About."""\nX = 1\n"""What X is."""\n\n\ndef f(x):\n    """About."""\n    if x:\n'
        '        return f"{x} must"\n        " be"\n    try:\n        "a"\n    finally:\n'
        '        f"{x}"\n    y = 1\n    "of a local"\n    return y\n'
    )
    assert strings_without_use(text) == [10, 12, 14, 16]
