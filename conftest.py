"""What holds for every test run.

Each has a temporary directory of its own, removed at its end: runs beside each other never clean up one another's. Generated examples are the
same in every run, unless GANTRY_RANDOM_TESTS is set: a run that fails, fails again.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("same-examples", derandomize=True)
if not os.environ.get("GANTRY_RANDOM_TESTS"):
    settings.load_profile("same-examples")

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
