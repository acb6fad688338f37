"""The compiled build: what is listed is what is imported, and nothing else differs. Only with GANTRY_COMPILED=1 (`./run compiled`) is the
installed package the compiled one."""

from __future__ import annotations

import ast
import importlib
import os
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODULES = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["gantrymq"]["compile"]
COMPILED = os.environ.get("GANTRY_COMPILED") == "1"


def dotted(path: str) -> str:
    return ".".join(Path(path).with_suffix("").parts[1:])


@pytest.mark.parametrize("path", MODULES)
def test_listed_modules_are_imported_as_what_the_environment_is(path: str) -> None:
    file = importlib.import_module(dotted(path)).__file__
    assert file is not None
    assert file.endswith(".so") is COMPILED


def test_the_list_names_each_module_once_and_in_order() -> None:
    assert sorted(set(MODULES)) == MODULES
    assert all((ROOT / path).is_file() for path in MODULES)


def test_no_listed_module_defines_a_struct() -> None:
    """msgspec reads the types of a class's annotations, which a compiled class does not keep as they were."""
    for path in MODULES:
        text = (ROOT / path).read_text("utf-8")
        assert re.search(r"^class .*msgspec\.Struct", text, re.MULTILINE) is None, path


def names_of_two_types(source: str) -> set[str]:
    """Variables that two handlers of one function bind to errors of different types."""
    found = set()
    for function in ast.walk(ast.parse(source)):
        if isinstance(function, ast.FunctionDef):
            handlers = [node for node in ast.walk(function) if isinstance(node, ast.ExceptHandler) and node.type]
            bound = {(handler.name, ast.unparse(handler.type)) for handler in handlers if handler.name and handler.type}
            names = [name for name, _ in bound]
            found |= {f"{function.name}: {name}" for name in names if names.count(name) > 1}
    return found


@pytest.mark.parametrize("path", MODULES)
def test_errors_of_two_types_have_two_names(path: str) -> None:
    """mypyc gives a variable the type of its first handler: one of another type then raises TypeError."""
    assert not names_of_two_types((ROOT / path).read_text("utf-8"))


def test_names_of_two_types_are_found() -> None:
    body = "    try: pass\n    except A as e: pass\n    except {} as {}: pass\n"
    assert names_of_two_types("def f():\n" + body.format("B", "e")) == {"f: e"}
    for other in (("A", "e"), ("B", "x")):
        assert not names_of_two_types("def f():\n" + body.format(*other))


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts[1:])


def bases_of(path: Path) -> dict[str, set[str]]:
    """Class -> those that it extends, each with the name of its module."""
    tree = ast.parse(path.read_text("utf-8"))
    own = name_of(path)
    known = {node.name: f"{own}.{node.name}" for node in tree.body if isinstance(node, ast.ClassDef)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            known |= {alias.asname or alias.name: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            known |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}

    def whole(base: ast.expr) -> str:
        first, dot, rest = ast.unparse(base).partition(".")
        return known.get(first, first) + dot + rest

    return {
        f"{own}.{node.name}": {whole(base) for base in node.bases}
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }


def test_what_extends_a_compiled_class_is_compiled() -> None:
    """mypyc: "interpreted classes cannot inherit from compiled", said when the first object is made."""
    product = [path for top in ("core/gantrymq", "gateways/gantrymq_gateways") for path in (ROOT / top).rglob("*.py")]
    listed = {ROOT / path for path in MODULES}
    compiled = {name for path in listed for name in bases_of(path)}
    assert len(compiled) > len(MODULES)
    outside = {
        name: bases & compiled for path in product if path not in listed for name, bases in bases_of(path).items()
    }
    assert not {name: bases for name, bases in outside.items() if bases}
