"""The compiled build: what is listed is what is imported, and nothing else differs. Only with GANTRY_COMPILED=1 (`./run compiled`) is the
installed package the compiled one."""

from __future__ import annotations

import importlib
import os
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
        assert "msgspec.Struct" not in text, path
