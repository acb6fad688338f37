"""`gantry cert dev`."""

from __future__ import annotations

import ssl
import stat
from pathlib import Path

import pytest

from gantrymq.cli.app import run_app


def test_a_ca_signs_again_and_keys_are_private(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = tmp_path / "certs"
    assert run_app(["cert", "dev", "broker.example", "10.0.0.1", "--dir", str(directory), "--client", "sensor-1"]) == 0
    assert sorted(path.name for path in directory.iterdir()) == [
        "ca.key", "ca.pem", "sensor-1.key", "sensor-1.pem", "server.key", "server.pem",
    ]  # fmt: skip
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in directory.glob("*.key"))
    assert f"tls.cert={directory}/server.pem" in capsys.readouterr().out
    authority = (directory / "ca.pem").read_bytes()
    assert run_app(["cert", "dev", "--dir", str(directory), "--client", "sensor-2"]) == 0
    assert (directory / "ca.pem").read_bytes() == authority
    context = ssl.create_default_context(cafile=directory / "ca.pem")
    for name in ("server", "sensor-1", "sensor-2"):
        context.load_cert_chain(directory / f"{name}.pem", directory / f"{name}.key")


@pytest.mark.parametrize("name", ["../x", ".hidden", "", "ca", "server", "a\nb"])
def test_a_client_becomes_the_name_of_a_file(tmp_path: Path, name: str) -> None:
    assert run_app(["cert", "dev", "--dir", str(tmp_path / "certs"), "--client", name]) == 2
    assert not (tmp_path / "certs").exists()
