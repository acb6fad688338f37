"""A Dockerfile carried out without Docker: its steps in a directory that stands for the container's root.

Absolute paths of the places that our image uses are those below the directory. What needs root (`useradd`) is a stand-in that makes
the home directory and writes down what it was asked.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from interop_tests import guard

PLACES = re.compile(r"(?<![\w./-])/(?=(?:opt|src|var/lib/gantry)\b)")
STEP = re.compile(r"([A-Z]+)\s+(.*)", re.DOTALL)


@dataclass(slots=True)
class Image:
    """What the last stage leaves beside its files."""

    base: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    user: str = "root"
    directory: str = "/"
    volumes: list[str] = field(default_factory=list)
    ports: set[int] = field(default_factory=set)
    entry: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)
    health: list[str] = field(default_factory=list)
    stop_signal: str = ""


def steps_of(text: str) -> list[tuple[str, str]]:
    """Words and what follows them; continued lines joined, comments left out."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ").splitlines()
    matches = [match for line in joined if (match := STEP.fullmatch(line.strip()))]
    return [(match[1], " ".join(match[2].split())) for match in matches]


def read_image(text: str) -> Image:
    """The last stage's settings; nothing is carried out."""
    image = Image()
    for word, rest in steps_of(text):
        if word == "FROM":
            image = Image(base=rest.split()[0])
        elif word == "ENV":
            for part in shlex.split(rest):
                name, _, value = part.partition("=")
                image.environment[name] = value
        elif word == "HEALTHCHECK":
            image.health = json.loads(rest.partition("CMD ")[2])
        elif word == "EXPOSE":
            image.ports = {int(port) for port in rest.split()}
        else:
            _note(image, word, rest)
    return image


def _note(image: Image, word: str, rest: str) -> None:
    match word:
        case "USER":
            image.user = rest
        case "WORKDIR":
            image.directory = rest
        case "VOLUME":
            image.volumes.append(rest)
        case "ENTRYPOINT":
            image.entry = json.loads(rest)
        case "CMD":
            image.command = json.loads(rest)
        case "STOPSIGNAL":
            image.stop_signal = rest
        case "COPY" | "RUN":
            pass
        case _:
            raise AssertionError(f"the recipe does not know {word}")


class Build:
    """Carries out the steps. `root` stands for / of the stage at work; of a finished stage the files lie aside."""

    def __init__(self, scratch: Path, context: Path, ignore: str) -> None:
        self.root = scratch / "root"
        self._stages = scratch / "stages"
        self._stand_ins = scratch / "bin"
        self._context = context
        self._kept = [line[1:] for line in ignore.splitlines() if line.startswith("!")]
        self._directory = "/"
        self._name = ""
        self.asked: Path = scratch / "useradd"
        """What `useradd` was asked, a line each."""
        self._make_stand_ins()

    def _make_stand_ins(self) -> None:
        self._stand_ins.mkdir()
        python = getattr(sys, "_base_executable", sys.executable)
        for name, script in (
            ("python", f'exec {shlex.quote(python)} "$@"'),
            (
                "useradd",
                f'echo "$@" >>{shlex.quote(str(self.asked))}\nmkdir -p {shlex.quote(str(self.root / "var/lib/gantry"))}',
            ),
        ):
            path = self._stand_ins / name
            path.write_text(f"#!/bin/sh\n{script}\n")
            path.chmod(0o755)

    def run(self, text: str) -> None:
        """All steps; the last stage's files are in `root`."""
        for word, rest in steps_of(text):
            if word == "FROM":
                self._begin(rest)
            elif word == "WORKDIR":
                self._directory = rest
                self.place(rest).mkdir(parents=True, exist_ok=True)
            elif word == "COPY":
                self._copy(rest.split())
            elif word == "RUN":
                self._call(rest)

    def place(self, path: str) -> Path:
        """Where a path of the container is."""
        return self.root / (path if path.startswith("/") else f"{self._directory}/{path}").lstrip("/")

    def moved(self, text: str) -> str:
        """The text with the container's places as they are here."""
        return PLACES.sub(f"{self.root}/", text)

    def _begin(self, rest: str) -> None:
        if self.root.exists():
            self._stages.mkdir(exist_ok=True)
            self.root.rename(self._stages / self._name)
        self.root.mkdir()
        self._name = rest.partition(" AS ")[2]
        self._directory = "/"

    def _call(self, command: str) -> None:
        done = subprocess.run(
            ["/bin/sh", "-ec", self.moved(command)], cwd=self.place(self._directory), env=self.environment(),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"RUN {command}\n{done.stdout[-4000:]}"

    def environment(self) -> dict[str, str]:
        """A step's: the machine's, without anything of the environment that the tests run in."""
        kept = {
            name: value for name, value in os.environ.items()
            if not name.startswith(("PYTHON", "VIRTUAL_ENV", "GANTRY_", "PYTEST"))
        }  # fmt: skip
        return {**kept, **guard.mark(), "PATH": f"{self._stand_ins}:/usr/local/bin:/usr/bin:/bin"}

    def _copy(self, words: list[str]) -> None:
        stage = words.pop(0).partition("=")[2] if words[0].startswith("--from=") else ""
        *sources, target = words
        for source in sources:
            origin = self._stages / stage / source.lstrip("/") if stage else self._context / source
            goal = self.place(target)
            if origin.is_dir():
                ignored = None if stage else self._ignored
                shutil.copytree(origin, goal, symlinks=True, dirs_exist_ok=True, ignore=ignored)
            else:
                assert stage or self._is_kept(source), f"COPY {source}: .dockerignore leaves it out"
                inside = goal / origin.name if target.endswith("/") else goal
                inside.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(origin, inside)

    def _is_kept(self, path: str) -> bool:
        """Below something that .dockerignore lets in again, or above it."""
        return any(f"{path}/".startswith(f"{kept}/") or f"{kept}/".startswith(f"{path}/") for kept in self._kept)

    def _ignored(self, directory: str, names: list[str]) -> list[str]:
        below = Path(directory).relative_to(self._context)
        return [name for name in names if name == "__pycache__" or not self._is_kept(str(below / name))]
