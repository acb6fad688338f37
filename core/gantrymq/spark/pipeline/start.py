"""Writes a new Spark project: the files of `project/` under a name. Imports neither Spark nor the client."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from importlib.resources.abc import Traversable

NAME_MARK, STORAGE_MARK = b"NAME-OF-THE-PIPELINE", b"STORAGE-OF-THE-PIPELINE"
"""What stands in the files for the name, and for the folder of Spark's declarative pipelines, which takes absolute addresses only."""
EXECUTABLE: Final = frozenset({"run"})
LEFT_OUT: Final = frozenset({"__pycache__"})
NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
"""It becomes a folder, a consumer group and part of the names of Spark's queries."""


class PipelineError(ValueError):
    """The project cannot be written; the text says why and what to do."""


def write_project(name: str, parent: Path) -> list[Path]:
    """Write the project into `parent/name`, which must be empty or not there; the files' paths below it. Raises PipelineError, OSError."""
    if not NAME.fullmatch(name):
        raise PipelineError(
            f"{name!r} cannot be a pipeline's name: a letter, then letters, digits, - and _, 64 at most"
        )
    folder = parent / name
    if folder.exists() and not folder.is_dir():
        raise PipelineError(f"{folder} is a file: choose another name")
    if folder.is_dir() and any(folder.iterdir()):
        raise PipelineError(f"{folder} is not empty: choose another name, or empty it")
    marks = {NAME_MARK: name, STORAGE_MARK: (folder.resolve() / "out" / "declared").as_uri()}
    written = []
    for path, source in _files(files(__package__) / "project", Path()):
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        content = source.read_bytes()
        for mark, value in marks.items():
            content = content.replace(mark, value.encode())
        target.write_bytes(content)
        target.chmod(0o755 if path.name in EXECUTABLE else 0o644)
        written.append(path)
    return written


def _files(folder: Traversable, path: Path) -> Iterator[tuple[Path, Traversable]]:
    """Each file below `folder`, with its path, in the order of names."""
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.name in LEFT_OUT:
            continue
        if entry.is_dir():
            yield from _files(entry, path / entry.name)
        else:
            yield path / entry.name, entry
