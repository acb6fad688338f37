"""The pages of docs/architecture name classes and members that are there."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs" / "architecture").glob("*.md"))
PRODUCT = ("core/gantrymq", "gateways/gantrymq_gateways", "nameserver/gantrymq_nameserver")
NAME = re.compile(r"`([A-Z][A-Za-z]+)(?:\.([a-z_]+))?`")


def members(node: ast.ClassDef) -> set[str]:
    """Methods and attributes that a class sets itself."""
    found = {item.name for item in node.body if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)}
    for item in ast.walk(node):
        if isinstance(item, ast.Attribute) and isinstance(item.value, ast.Name) and item.value.id == "self":
            found.add(item.attr)
    return found


@cache
def classes() -> dict[str, set[str]]:
    """Names of each class's members, with those of classes of the same name and of its bases."""
    found: dict[str, set[str]] = {}
    bases: dict[str, set[str]] = {}
    for folder in PRODUCT:
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef):
                    found.setdefault(node.name, set()).update(members(node))
                    bases.setdefault(node.name, set()).update(
                        base.id for base in node.bases if isinstance(base, ast.Name)
                    )
    for name, above in bases.items():
        for base in above:
            found[name] |= found.get(base, set())
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_names_is_in_the_code(page: Path) -> None:
    known = classes()
    named = NAME.findall(page.read_text(encoding="utf-8"))
    missing = [
        f"{name}.{method}" if method else name
        for name, method in named
        if name not in known or (method and method not in known[name])
    ]
    assert not missing


def test_one_send_is_traced_in_fifteen_steps_at_most() -> None:
    text = (ROOT / "docs" / "architecture" / "ways.md").read_text(encoding="utf-8")
    trace = text.split("## One send, traced by hand")[1].split("\n## ")[0]
    steps = re.findall(r"^(\d+)\. `[A-Z]", trace, re.MULTILINE)
    assert [int(step) for step in steps] == list(range(1, len(steps) + 1))
    assert 5 < len(steps) <= 15
