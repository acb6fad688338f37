"""What one can set has an effect."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

import gantrymq
import gantrymq_gateways
from gantrymq.auth.config import AuthConfig
from gantrymq.auth.rows import User

ROOTS = (Path(gantrymq.__file__).parent, Path(gantrymq_gateways.__file__).parent)
DEFINED_IN = ("config.py", "rows.py")


def sources() -> str:
    """Of the product, without the definitions themselves."""
    files = [file for root in ROOTS for file in root.rglob("*.py")]
    files = [file for file in files if file.parent.name != "auth" or file.name not in DEFINED_IN]
    return "\n".join([file.read_text(encoding="utf-8") for file in files])


@pytest.mark.parametrize(
    ("owner", "name"),
    [("(?:config|auth)", each.name) for each in fields(AuthConfig)]
    + [("(?:user|now|found)", name) for name in User.__struct_fields__ if name != "changed_ms"],
)
def test_every_setting_and_every_field_of_a_user_is_read(owner: str, name: str) -> None:
    assert re.search(rf"\b{owner}\.{name}\b", TEXT), f"nothing reads {name}"


TEXT = sources()
