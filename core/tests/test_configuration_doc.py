"""docs/operations/configuration.md lists every setting; `python core/tests/test_configuration_doc.py` writes its tables anew."""

from __future__ import annotations

import importlib
import tomllib
from pathlib import Path

from gantrymq.cli.settings.catalog import settings_of
from gantrymq.config import PROCESS_SECTIONS
from gantrymq.model.settings import is_part

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "operations" / "configuration.md"
MARK = "<!-- the tables below are written by core/tests/test_configuration_doc.py -->"


def sections() -> dict[str, type]:
    """Every section of the project's own services."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found = dict(PROCESS_SECTIONS)
    for target in project["entry-points"]["gantrymq.services"].values():
        module, _, name = target.partition(":")
        service = getattr(importlib.import_module(module), name)()
        found[service.name] = service.config
        found.update({name: extra for name, extra in service.extra_sections.items() if not is_part(extra)})
    return found


def shown(value: object) -> str:
    """A default as one would write it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) and value >= 1 << 20 and value % (1 << 20) == 0:
        return f"{value >> 20} MiB"
    return "empty" if value in ("", None) else str(value)


def render() -> str:
    """A table per section."""
    parts: list[str] = []
    for name, section in sections().items():
        rows = [f"\n## `{name}`\n", "| key | default | allowed | what it is |", "| --- | --- | --- | --- |"]
        for setting in settings_of(name, section):
            text = setting.text.replace("|", "\\|")
            rows.append(f"| `{setting.name}` | {shown(setting.default)} | {setting.allowed} | {text} |")
        parts.append("\n".join(rows))
    return "\n".join(parts) + "\n"


def test_every_setting_says_what_it_is() -> None:
    found = [setting for name, section in sections().items() for setting in settings_of(name, section)]
    assert len(found) > 80
    assert not [setting.name for setting in found if not setting.text]


def test_the_page_lists_every_setting_as_it_is() -> None:
    head, mark, tables = PAGE.read_text(encoding="utf-8").partition(MARK + "\n")
    assert head
    assert mark, f"{PAGE.name} lost the mark {MARK}"
    assert tables == render(), "settings changed: run python core/tests/test_configuration_doc.py"


if __name__ == "__main__":
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(page.partition(MARK)[0] + MARK + "\n" + render(), encoding="utf-8")
