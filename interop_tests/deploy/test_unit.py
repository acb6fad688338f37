"""The systemd unit and the sample configuration: systemd's own opinion, and that their times and limits fit the server's."""

from __future__ import annotations

import configparser
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gantrymq.cli.main import parse_server_command
from gantrymq.config import ServerConfig, load
from gantrymq.launch.exit_codes import EXIT_USAGE
from gantrymq.launch.plan import Launch, make_plan
from gantrymq.net.listen import FILES_RESERVED
from interop_tests.deploy.files import DEPLOY

UNIT = DEPLOY / "gantry.service"
SAMPLE = DEPLOY / "gantry.toml"
ANALYZE = shutil.which("systemd-analyze")
EXPOSURE_MAX = 20
"""Tenths of a point of `systemd-analyze security`: below 2.0 is what it calls OK."""


def service() -> configparser.SectionProxy:
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(UNIT, encoding="utf-8")
    return parser["Service"]


@pytest.mark.skipif(ANALYZE is None, reason="systemd-analyze is not installed")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    assert ANALYZE is not None
    there = tmp_path / "gantry.service"
    # Only the place differs: systemd looks whether the program is there.
    there.write_text(UNIT.read_text(encoding="utf-8").replace("/opt/gantry/bin/gantry", sys.executable))
    done = subprocess.run([ANALYZE, "verify", str(there)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    security = [ANALYZE, "security", "--offline=true", f"--threshold={EXPOSURE_MAX}", str(there)]
    done = subprocess.run(security, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-300:] + done.stderr


def test_the_unit_fits_the_server() -> None:
    unit = service()
    assert unit["Type"] == "notify"
    assert int(unit["TimeoutStopSec"]) * 1000 >= ServerConfig().drain_ms + 20_000
    assert int(unit["LimitNOFILE"]) >= ServerConfig().connections_max + FILES_RESERVED
    assert unit["RestartPreventExitStatus"] == str(EXIT_USAGE)
    assert f"/var/lib/{unit['StateDirectory']}" == "/var/lib/gantry"
    values = parse_server_command(unit["ExecStart"].split()[1:])
    assert values == {
        "command": "up", "config": "/etc/gantry/gantry.toml", "data": "/var/lib/gantry", "services": (), "sets": (),
    }  # fmt: skip


def test_the_sample_configuration_is_right_as_it_is_and_with_all_of_it_on(tmp_path: Path) -> None:
    check = [sys.executable, "-m", "gantrymq", "config", "check"]
    done = subprocess.run([*check, str(SAMPLE)], capture_output=True, text=True, check=False, env=dict(os.environ))
    assert done.returncode == 0, done.stderr
    open_ = tmp_path / "gantry.toml"
    open_.write_text(SAMPLE.read_text(encoding="utf-8").replace("\n#", "\n").replace("\n ", "\n# "), encoding="utf-8")
    assert load(str(open_), {}, ()).get("broker", "advertised_host")
    assert make_plan(Launch("up", config=str(open_)), {}).server.host == "0.0.0.0"
