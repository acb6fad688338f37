"""The README's samples, run as they stand there, one after the other against one server: what each sends the others get."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pika.connection
import pytest

from gantrymq.cli.app import run_app
from interop_tests import guard
from interop_tests.running import Gantry

PAGE = (Path(__file__).parents[1] / "README.md").read_text()
PYTHON = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
CURL = re.findall(r"^curl .*?(?=\n```)", PAGE, re.DOTALL | re.MULTILINE)


def sample(word: str) -> str:
    (found,) = [text for text in PYTHON if word in text]
    return found


def test_every_sample_of_python_is_known_here() -> None:
    assert len(PYTHON) == 3
    assert [
        len([text for text in PYTHON if word in text]) for word in ("pika", "PushConsumer", "spark.readStream")
    ] == [1, 1, 1]


def test_the_samples_as_written(own_server: Gantry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nameserver = own_server.doors["nameserver"]
    monkeypatch.setenv("NAMESRV_ADDR", nameserver)
    monkeypatch.setattr(pika.connection.Parameters, "DEFAULT_PORT", int(own_server.doors["amqp"].rpartition(":")[2]))

    (line,) = re.findall(r"^\./run gantry (send .*?)\s*#", PAGE, re.MULTILINE)
    assert run_app(shlex.split(line)) == 0
    exec(compile(sample("pika"), "README.md", "exec"), {"__name__": "__main__"})
    if shutil.which("curl"):
        (command,) = CURL
        said = subprocess.run(
            command.replace("127.0.0.1:8080", own_server.doors["cloudevents"]), shell=True, capture_output=True, text=True, check=True
        )  # fmt: skip
        assert "202" in said.stdout.splitlines()[0], "whoever types it sees an answer"

    program = tmp_path / "worker.py"
    program.write_text(sample("PushConsumer"))
    worker = subprocess.Popen(
        [sys.executable, str(program)], stdout=subprocess.PIPE, text=True,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path), "NAMESRV_ADDR": nameserver} | guard.mark(),
    )  # fmt: skip
    try:
        assert worker.stdout is not None
        seen = {worker.stdout.readline(), worker.stdout.readline()}
    finally:
        worker.kill()
        worker.communicate()
    assert seen == {"line1.temp b'21.5'\n", "line2.temp b'22'\n"}, "what was sent before it began, too"
