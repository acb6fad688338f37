"""A distribution that nobody here knows, with a service `stranger`."""

from __future__ import annotations

from pathlib import Path


def install_stranger(directory: Path, *settings: str) -> None:
    """`settings`: lines of its configuration's class. The directory is to be on Python's path."""
    info = directory / "stranger-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: stranger\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[gantrymq.services]\nstranger = stranger_service:factory\n")
    (directory / "stranger_service.py").write_text(
        "\n".join([
            "from dataclasses import dataclass", "@dataclass(frozen=True)", "class C:", *[f"    {line}" for line in settings],
            "class S:", "    name = 'stranger'", "    config = C", "    extra_sections = {}", "factory = S", "",
        ])
    )  # fmt: skip
