"""docs/operations/configuration.md lists every setting; `python core/tests/test_configuration_doc.py` writes its tables anew."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import textwrap
import tomllib
from pathlib import Path
from typing import Any, get_type_hints

from gantrymq.config import ServerConfig, default_of, describe

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "operations" / "configuration.md"
MARK = "<!-- the tables below are written by core/tests/test_configuration_doc.py -->"
COMMON = {"port": "port of the door; 0 takes a free one", "enabled": "false leaves the service out of `gantry up`"}


def sections() -> dict[str, type]:
    """Every section of the project's own services."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found: dict[str, type] = {"server": ServerConfig}
    for target in project["entry-points"]["gantrymq.services"].values():
        module, _, name = target.partition(":")
        service = getattr(importlib.import_module(module), name)()
        found[service.name] = service.config
        found.update(service.extra_sections)
    return found


def docstrings(section: type) -> dict[str, str]:
    """The texts below the fields."""
    body = ast.parse(textwrap.dedent(inspect.getsource(section))).body[0]
    assert isinstance(body, ast.ClassDef)
    texts: dict[str, str] = {}
    for field, following in zip(body.body, body.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            match following:
                case ast.Expr(value=ast.Constant(value=str() as text)):
                    texts[field.target.id] = " ".join(text.split())
    return texts


def shown(value: object) -> str:
    """A default as one would write it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) and value >= 1 << 20 and value % (1 << 20) == 0:
        return f"{value >> 20} MiB"
    return "empty" if value in ("", None) else str(value)


def allowed(wanted: Any, item: dataclasses.Field[Any]) -> str:
    limits = dict(item.metadata)
    if item.name == "port":
        limits = {"min": 0, "max": 65535} | limits
    return describe(wanted, limits)


def render() -> str:
    """A table per section."""
    parts: list[str] = []
    for name, section in sections().items():
        hints, texts = get_type_hints(section), docstrings(section)
        rows = [f"\n## `{name}`\n", "| key | default | allowed | what it is |", "| --- | --- | --- | --- |"]
        for item in dataclasses.fields(section):
            if "set_as" in item.metadata:
                continue  # of another section
            text = item.metadata.get("help") or texts.get(item.name) or COMMON.get(item.name, "")
            text = text.replace("|", "\\|")
            rows.append(
                f"| `{name}.{item.name}` | {shown(default_of(item))} | {allowed(hints[item.name], item)} | {text} |"
            )
        parts.append("\n".join(rows))
    return "\n".join(parts) + "\n"


def test_the_page_lists_every_setting_as_it_is() -> None:
    head, mark, tables = PAGE.read_text(encoding="utf-8").partition(MARK + "\n")
    assert head
    assert mark, f"{PAGE.name} lost the mark {MARK}"
    assert tables == render(), "settings changed: run python core/tests/test_configuration_doc.py"


if __name__ == "__main__":
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(page.partition(MARK)[0] + MARK + "\n" + render(), encoding="utf-8")
