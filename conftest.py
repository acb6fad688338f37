"""Each test run has a temporary directory of its own, removed at its end: runs beside each other never clean up one another's."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest

_OWN = pytest.StashKey[Path]()


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    if config.option.basetemp is None:
        config.stash[_OWN] = own = Path(tempfile.mkdtemp(prefix="gantry-tests-"))
        config.option.basetemp = str(own / "run")


def pytest_unconfigure(config: pytest.Config) -> None:
    own = config.stash.get(_OWN, None)
    if own is not None:
        shutil.rmtree(own, ignore_errors=True)
