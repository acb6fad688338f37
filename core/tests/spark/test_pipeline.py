"""`gantry pipeline init` writes a whole project, never over something that is there. It runs in interop_tests/test_pipeline.py."""

import subprocess
import sys
from pathlib import Path

import pytest

from gantrymq.cli.app import run_app
from gantrymq.launch.exit_codes import EXIT_FAILED, EXIT_USAGE
from gantrymq.spark.pipeline.start import PipelineError, write_project

EXPECTED = {
    ".gitignore", "README.md", "data/devices.csv", "data/sample.jsonl", "flows/telemetry_flows.py", "job.py", "local.py", "requirements.txt", "run",
    "settings.toml", "spark-pipeline.yml", "telemetry/__init__.py", "telemetry/compact.py", "telemetry/dashboard.py", "telemetry/ends.py", "telemetry/queries.py",
    "telemetry/settings.py", "telemetry/transform.py", "test_telemetry.py",
}  # fmt: skip


def files_of(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_the_project_is_whole_and_has_its_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["pipeline", "init", "fleet-7", "--dir", str(tmp_path)]) == 0
    folder = tmp_path / "fleet-7"
    assert files_of(folder) == EXPECTED
    assert f"wrote {len(EXPECTED)} files" in capsys.readouterr().out
    assert (folder / "run").stat().st_mode & 0o111
    for path in EXPECTED:
        content = (folder / path).read_text()
        assert "-OF-THE-PIPELINE" not in content
        if path.endswith(".py"):
            compile(content, path, "exec")
    assert 'name = "fleet-7"' in (folder / "settings.toml").read_text()
    assert f"storage: {(folder / 'out' / 'declared').as_uri()}" in (folder / "spark-pipeline.yml").read_text()


def test_a_folder_that_is_empty_is_filled(tmp_path: Path) -> None:
    (tmp_path / "fleet").mkdir()
    assert set(map(str, write_project("fleet", tmp_path))) == EXPECTED


def test_nothing_is_written_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "fleet").mkdir()
    (tmp_path / "fleet" / "mine").write_text("x")
    assert run_app(["pipeline", "init", "fleet", "--dir", str(tmp_path)]) == EXIT_USAGE
    assert "is not empty" in capsys.readouterr().err
    assert files_of(tmp_path) == {"fleet/mine"}
    with pytest.raises(PipelineError, match="is a file"):
        write_project("mine", tmp_path / "fleet")


@pytest.mark.parametrize("name", ["", "7up", "a b", "../x", "a/b", ".hidden", "x" * 65, "ä"])
def test_names_are_checked(name: str, tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="cannot be a pipeline's name"):
        write_project(name, tmp_path)
    assert not files_of(tmp_path)


def test_a_place_that_cannot_be_written_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert run_app(["pipeline", "init", "fleet", "--dir", str(tmp_path / "file")]) == EXIT_FAILED
    assert "Not a directory" in capsys.readouterr().err


SETTINGS = """
import sys
from pathlib import Path
from telemetry.settings import load
settings = load()
assert settings.tables == str(Path.cwd() / "out" / "windows"), settings
path = Path("settings.toml")
for old, new, text in [
    ('topic = "telemetry"', "topic = 5", "topic must be a text"),
    ("nameserver =", "nameservers =", "nameservers"),
    ('window = "5', 'window "5', "settings.toml"),
]:
    wrong = Path("wrong-settings.toml")
    wrong.write_text(path.read_text().replace(old, new, 1))
    try:
        load(wrong)
    except ValueError as error:
        assert text in str(error), error
    else:
        sys.exit(f"{new} was taken")
"""


def test_settings_are_checked(tmp_path: Path) -> None:
    write_project("fleet", tmp_path)
    done = subprocess.run([sys.executable, "-c", SETTINGS], cwd=tmp_path / "fleet", capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
