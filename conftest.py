"""What holds for every test run.

Each has a temporary directory of its own, removed at its end: runs beside each other never clean up one another's. Generated examples are the
same in every run, unless GANTRY_RANDOM_TESTS is set: a run that fails, fails again. They have no deadline: how long one takes says what else
the machine does, not what is wrong; pytest's timeout ends what hangs. What a run has started (servers, JVMs) ends with it, also when it is killed.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from _pytest.assertion import rewrite
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

from interop_tests import guard

settings.register_profile(
    "gantry",
    derandomize=not os.environ.get("GANTRY_RANDOM_TESTS"),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("gantry")
# Hypothesis also draws literals of the project's modules, all that are imported by then. Which those are depends on the tests that this worker
# had before; without them the examples are the same in every run.
if not os.environ.get("GANTRY_RANDOM_TESTS"):
    assert callable(providers._get_local_constants)
    providers._get_local_constants = lambda: providers._local_constants

collect_ignore = ["core/gantrymq/spark/pipeline/project"]
"""A program of users with tests of its own: interop_tests/test_pipeline.py runs them where they are written to."""

WISHES = (
    "CLICOLOR",
    "CLICOLOR_FORCE",
    "COLUMNS",
    "FORCE_COLOR",
    "LINES",
    "NO_COLOR",
    "TTY_COMPATIBLE",
    "TTY_INTERACTIVE",
)
"""How whoever runs the tests wants to see them: colours and widths, which are not for the screens that are compared. Locale, time zone, TERM and HOME
stay as they are; interop_tests/test_surroundings.py runs the command under all of these."""

SPARK = {
    "interop_tests/test_spark_source.py",
    "interop_tests/test_cross_matrix_spark.py",
    "core/tests/spark/test_spark.py",
}
"""They share a session: one worker runs them, so that one JVM is started and warmed up."""

_OWN = pytest.StashKey[Path]()


def pytest_collection_finish() -> None:
    """Modules and tests stay to the end of the run, a million objects: the collector does not look at them again in every full collection, nor does a
    test that asks it what is alive."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    guard.begin()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # As a shell gives it to what runs in its background. What tests start would ignore Ctrl-C, too.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.option.basetemp is None:
        config.stash[_OWN] = own = Path(tempfile.mkdtemp(prefix="gantry-tests-"))
        config.option.basetemp = str(own / "run")
    if hasattr(config, "workerinput") and not sys.dont_write_bytecode:
        number = int(config.workerinput["workerid"].removeprefix("gw"))
        _rewrite_share(config, number, config.workerinput["workercount"])


def _rewrite_share(config: pytest.Config, number: int, count: int) -> None:
    """Workers import all test modules, in the same order at the same time: in a fresh clone each would rewrite the assertions of all of them. Each
    does its share beforehand, and finds that of the others."""
    state = config.stash[rewrite.assertstate_key]
    places = [config.invocation_params.dir / arg.partition("::")[0] for arg in config.args]
    files = sorted({file for place in places if place.is_dir() for file in place.rglob("test_*.py")})
    for file in files[number % count :: count]:
        pyc = rewrite.get_cache_dir(file) / (file.name.removesuffix(".py") + rewrite.PYC_TAIL)
        if rewrite._read_pyc(file, pyc, state.trace) is None and rewrite.try_makedirs(pyc.parent):
            try:
                source_hash, code = rewrite._rewrite_test(file, config)
            except SyntaxError:
                continue  # the collection tells it, with its place
            rewrite._write_pyc(state, code, source_hash, pyc)


@pytest.hookimpl(tryfirst=True)
def pytest_collection() -> None:
    """Pytest itself knows them by now, and no test has been imported."""
    for name in WISHES:
        os.environ.pop(name, None)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A file's tests stay together, and those of `SPARK`."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return "Spark" if file in SPARK else file

    return Scheduling(config, log)


def pytest_unconfigure(config: pytest.Config) -> None:
    own = config.stash.get(_OWN, None)
    if own is not None:
        shutil.rmtree(own, ignore_errors=True)
