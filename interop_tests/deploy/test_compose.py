"""The compose files: what their processes are told is right, and nothing of them is reachable from other machines."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gantrymq.cli.main import parse_server_command
from gantrymq.config import ServerConfig
from gantrymq.launch.plan import Launch, Plan, make_plan
from gantrymq.net.listen import FILES_RESERVED
from interop_tests.deploy.files import COMPOSE_FILES, DEPLOY, ROOT, read_yaml
from interop_tests.deploy.recipe import Image, read_image

VARIABLE = re.compile(r"\$\{(\w+):-([^}]*)\}")
VIP_BELOW = 2


def image() -> Image:
    return read_image((DEPLOY / "Dockerfile").read_text(encoding="utf-8"))


def services() -> list[tuple[str, str, dict[str, Any]]]:
    """(file, name, service)."""
    return [(file, name, each) for file in COMPOSE_FILES for name, each in read_yaml(file)["services"].items()]


ALL = [pytest.param(file, service, id=f"{file}:{name}") for file, name, service in services()]


def environment_of(service: dict[str, Any]) -> dict[str, str]:
    """The image's and the service's own, as Compose fills it in where no variable is set."""
    own = {name: VARIABLE.sub(r"\2", value) for name, value in service.get("environment", {}).items()}
    return image().environment | own


def plan_of(service: dict[str, Any]) -> Plan:
    values = parse_server_command([*image().entry[1:], *service["command"]])
    assert values is not None
    return make_plan(Launch(**values), environment_of(service))  # type: ignore[arg-type]


def ports_of(service: dict[str, Any]) -> list[tuple[str, int, int]]:
    """(host's address, host's port, container's port)."""
    found = []
    for text in service["ports"]:
        address, outside, inside = text.split(":")
        found.append((address, int(outside), int(inside)))
    return found


@pytest.mark.parametrize(("file", "service"), ALL)
def test_what_a_process_is_told_is_right(file: str, service: dict[str, Any]) -> None:
    plan = plan_of(service)
    assert plan.server.host == "0.0.0.0"
    assert plan.server.data == image().volumes[0] == service["volumes"][0].split(":")[1]
    listening = {plan.configs[name].port for name in plan.configs}
    if "broker" in plan.configs:
        listening.add(plan.configs["broker"].port - VIP_BELOW)
    assert {inside for _, _, inside in ports_of(service)} == listening
    known = read_yaml(file)["services"]
    for address in plan.nameservers if not plan.own_nameserver and service["command"] != ["nameserver"] else ():
        host, _, port = address.partition(":")
        assert known[host]["command"] == ["nameserver"]
        assert int(port) == plan_of(known[host]).configs["nameserver"].port
    for other, how in service.get("depends_on", {}).items():
        assert other in known
        assert how == {"condition": "service_healthy"}


@pytest.mark.parametrize(("file", "service"), ALL)
def test_a_client_of_the_published_ports_is_let_in(file: str, service: dict[str, Any]) -> None:
    """It comes from the container network's own address, which is not loopback."""
    configs = plan_of(service).configs
    if "amqp" in configs:
        assert configs["amqp"].loopback_guest_only is False
        assert configs["mqtt"].allow_anonymous is True
        assert configs["cloudevents"].allow_anonymous is True
    if "broker" in configs:
        host = configs["broker"].advertised_host
        assert host == "127.0.0.1" or host in read_yaml(file)["services"]
        # What routes say must hold outside, too: there clients know the broker by the same port.
        assert all(outside == inside for _, outside, inside in ports_of(service) if inside == configs["broker"].port)


def test_processes_of_a_cluster_share_a_key_if_there_is_one() -> None:
    given = f"{'0123456789abcdef' * 4}"
    for service in read_yaml("compose.cluster.yaml")["services"].values():
        assert plan_of(service).cluster_key is None
        variables = service["environment"]
        assert variables["GANTRY_AUTH__CLUSTER_KEY"] == "${GANTRY_CLUSTER_KEY:-}"
        with_key = service | {"environment": variables | {"GANTRY_AUTH__CLUSTER_KEY": given}}
        assert plan_of(with_key).cluster_key is not None


@pytest.mark.parametrize("file", COMPOSE_FILES)
def test_ports_are_published_on_loopback_once(file: str) -> None:
    published = [port for service in read_yaml(file)["services"].values() for port in ports_of(service)]
    assert {address for address, _, _ in published} == {"127.0.0.1"}
    assert len({outside for _, outside, _ in published}) == len(published)


@pytest.mark.parametrize(("file", "service"), ALL)
def test_limits_fit_the_server(file: str, service: dict[str, Any]) -> None:
    assert int(service["stop_grace_period"].removesuffix("s")) * 1000 >= ServerConfig().drain_ms + 20_000
    assert service["ulimits"]["nofile"]["soft"] >= ServerConfig().connections_max + FILES_RESERVED
    volume, _, _ = service["volumes"][0].partition(":")
    assert volume in read_yaml(file)["volumes"]
    sharing = [each for each in read_yaml(file)["services"].values() if each["volumes"] == service["volumes"]]
    assert len(sharing) == 1


def test_the_image() -> None:
    made = image()
    assert made.base == "python:3.11-slim"
    assert made.user != "root"
    assert made.stop_signal == "SIGTERM"
    port = made.environment["GANTRY_METRICS__PORT"]
    assert f"http://127.0.0.1:{port}/readyz" in made.health[-1]
    one_node = read_yaml("compose.yaml")["services"]["gantry"]
    assert made.ports == {inside for _, _, inside in ports_of(one_node)}
    assert [*made.command] == one_node["command"]
    for service in (each for _, _, each in services() if "build" in each):
        context = (DEPLOY / service["build"]["context"]).resolve()
        assert context == ROOT
        assert (context / service["build"]["dockerfile"]).is_file()
    assert {each["image"] for _, _, each in services()} == {"gantrymq:local"}


@pytest.mark.slow
def test_the_compose_specification_has_these_files(tmp_path: Path) -> None:
    """Its JSON schema (Apache-2.0) comes with check-jsonschema, installed from the hashed list beside this file."""
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    wanted = str(Path(__file__).with_name("requirements.txt"))
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "-q", "install", "--require-hashes", "-r", wanted]
    subprocess.run(pip, check=True)
    check = [str(python.with_name("check-jsonschema")), "--builtin-schema", "vendor.compose-spec"]
    done = subprocess.run(
        [*check, *[str(DEPLOY / name) for name in COMPOSE_FILES]], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    wrong = tmp_path / "compose.yaml"
    wrong.write_text((DEPLOY / "compose.yaml").read_text(encoding="utf-8").replace("cap_drop:", "cap_dorp:"))
    done = subprocess.run([*check, str(wrong)], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "cap_dorp" in done.stdout
