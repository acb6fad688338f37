"""What is installed is what the project says: every package in the wheel, every entry point loadable."""

import zipfile
from importlib.metadata import entry_points, version
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

import gantrymq

ROOT = Path(__file__).resolve().parents[2]
SERVICES = {"metrics", "amqp", "broker", "cloudevents", "mqtt", "nameserver"}


@pytest.fixture(scope="module")
def wheel_names(tmp_path_factory):
    (path,) = WheelBuilder(str(ROOT)).build(directory=str(tmp_path_factory.mktemp("wheel")), versions=["standard"])
    with zipfile.ZipFile(path) as archive:
        return set(archive.namelist())


@pytest.mark.parametrize(
    ("source_root", "package"),
    [("core", "gantrymq"), ("gateways", "gantrymq_gateways"), ("nameserver", "gantrymq_nameserver")],
)
def test_wheel_holds_every_module(wheel_names, source_root, package):
    base = ROOT / source_root
    expected = {str(path.relative_to(base)) for path in (base / package).rglob("*.py")}
    assert expected | {f"{package}/py.typed"} <= wheel_names


def test_wheel_holds_the_spark_entry_module_and_no_tests(wheel_names):
    assert "pyspark_gantry.py" in wheel_names
    assert not [name for name in wheel_names if "tests" in name.split("/")]


def test_version_is_the_packages():
    assert version("gantrymq") == gantrymq.__version__


def test_all_services_are_announced():
    assert {point.name for point in entry_points(group="gantrymq.services")} == SERVICES


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_service_factory_loads(name):
    (point,) = entry_points(group="gantrymq.services", name=name)
    assert callable(point.load())


def test_command_loads():
    (point,) = entry_points(group="console_scripts", name="gantry")
    assert callable(point.load())
