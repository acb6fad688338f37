"""Fields of sections."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from gantrymq.model.settings import setting


@dataclass(frozen=True)
class Section:
    plain: int = setting(3)
    bounded: int = setting(0, "text", least=0, most=5)
    names: list[str] = setting([], "names")
    word: str = setting("a", allowed=("a", "b"), set_as="other.word")
    hidden: str = setting("", secret=True)


def test_what_is_told_of_each() -> None:
    told: dict[str, Any] = {item.name: dict(item.metadata) for item in fields(Section)}
    assert told == {
        "plain": {},
        "bounded": {"help": "text", "min": 0, "max": 5},
        "names": {"help": "names"},
        "word": {"allowed": ("a", "b"), "set_as": "other.word"},
        "hidden": {"secret": True},
    }


def test_each_section_has_a_list_of_its_own() -> None:
    one, other = Section(), Section()
    one.names.append("x")
    assert other == Section()
    assert other.names == []


def test_a_secret_is_not_shown() -> None:
    assert "told" not in repr(Section(hidden="told"))
    assert "bounded=0" in repr(Section())
