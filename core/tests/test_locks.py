"""The lists of packages, gone through without a network: pinned, hashed, one version of each, none with a known hole; and the bill of materials."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LOCKS = sorted((ROOT / "locks").glob("*.txt"))

MENDED = {
    "certifi": ("2024.7.4", "CVE-2024-39689"),
    "cryptography": ("44.0.1", "CVE-2024-12797"),
    "h11": ("0.16.0", "CVE-2025-43859"),
    "httpx": ("0.23.0", "CVE-2021-41945"),
    "idna": ("3.7", "CVE-2024-3651"),
    "pillow": ("10.3.0", "CVE-2024-28219"),
    "pyarrow": ("14.0.1", "CVE-2023-47248"),
    "pydantic": ("2.4.0", "CVE-2024-3772"),
    "pygments": ("2.15.1", "CVE-2022-40896"),
    "pyyaml": ("5.4", "CVE-2020-14343"),
    "requests": ("2.32.4", "CVE-2024-47081"),
    "setuptools": ("78.1.1", "CVE-2025-47273"),
    "urllib3": ("2.5.0", "CVE-2025-50181"),
    "websockets": ("9.1", "CVE-2021-33880"),
    "werkzeug": ("3.0.6", "CVE-2024-49767"),
}
"""The version that mended the newest hole known to this test."""

PIN = re.compile(r"^([a-z0-9][a-z0-9._-]*)==([^ ;\\]+)(?: ; (.*?))? \\$")
HASH = re.compile(r"^    --hash=sha256:[0-9a-f]{64}(?: \\)?$")


def pins(lock: Path) -> list[tuple[str, str, int]]:
    """Name, version and number of hashes; fails for a line that is none of the three that a lock has."""
    found: list[tuple[str, str, int]] = []
    for number, line in enumerate(lock.read_text("utf-8").splitlines(), 1):
        pin = PIN.match(line)
        if pin is not None:
            found.append((pin[1], pin[2], 0))
        elif HASH.match(line):
            name, version, hashes = found[-1]
            found[-1] = (name, version, hashes + 1)
        else:
            assert not line.strip() or line.lstrip().startswith("#"), f"{lock.name}:{number}: {line}"
    return found


def numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0]))


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_every_package_is_pinned_and_hashed(lock: Path) -> None:
    found = pins(lock)
    assert found
    assert [name for name, _, hashes in found if not hashes] == []


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_none_has_a_hole_that_is_known_here(lock: Path) -> None:
    old = [
        f"{name} {version}: {MENDED[name][1]} is mended in {MENDED[name][0]}"
        for name, version, _ in pins(lock)
        if name in MENDED and numbers(version) < numbers(MENDED[name][0])
    ]
    assert old == []
    assert numbers("0.14.0") < numbers(MENDED["h11"][0]) <= numbers("0.16.0")


def test_what_is_installed_is_what_is_tested() -> None:
    """The base installation's versions are among those that the tests run with."""
    tested = {(name, version) for name, version, _ in pins(ROOT / "locks" / "dev.txt")}
    assert {(name, version) for name, version, _ in pins(ROOT / "locks" / "base.txt")} - tested == set()


def test_the_bill_of_materials_is_the_lock() -> None:
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    hook = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hook)
    lock = ROOT / "locks" / "base.txt"
    text = hook.bill_of_materials("1.2.3", lock.read_text("utf-8"))
    assert text == hook.bill_of_materials("1.2.3", lock.read_text("utf-8"))
    bill = json.loads(text)
    assert (bill["bomFormat"], bill["metadata"]["component"]["version"]) == ("CycloneDX", "1.2.3")
    listed = [(each["name"], each["version"], len(each["hashes"])) for each in bill["components"]]
    assert listed == pins(lock)
    graph = {each["ref"]: each["dependsOn"] for each in bill["dependencies"]}
    refs = {each["bom-ref"] for each in bill["components"]}
    assert set().union(*graph.values()) == refs, "somebody wants each"
    assert any(ref.startswith("pkg:pypi/anyio@") for ref in graph["pkg:pypi/gantrymq@1.2.3"])


def test_a_wheel_has_it(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if ".dist-info/sboms/" in name]
        assert json.loads(archive.read(name))["bomFormat"] == "CycloneDX"
