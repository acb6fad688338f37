"""mqadmin's commands for users and access lists, unchanged, against this broker and against the real one, both with ACL 2.0 on."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from interop_tests.accounts import ADMIN, PASSWORD, Guarded
from interop_tests.mqadmin import driver
from interop_tests.mqadmin.commands import EVERYWHERE
from interop_tests.real_broker import REAL_BROKER, peer
from interop_tests.running import free_port

pytestmark = REAL_BROKER

_AUTH: Final = "org.apache.rocketmq.auth"
WITH_ACL: Final = ";".join(
    [
        "authenticationEnabled=true", "authorizationEnabled=true",
        f"authenticationProvider={_AUTH}.authentication.provider.DefaultAuthenticationProvider",
        f"authenticationMetadataProvider={_AUTH}.authentication.provider.LocalAuthenticationMetadataProvider",
        f"authorizationProvider={_AUTH}.authorization.provider.DefaultAuthorizationProvider",
        f"authorizationMetadataProvider={_AUTH}.authorization.provider.LocalAuthorizationMetadataProvider",
        f'initAuthenticationUser={{"username":"{ADMIN}","password":"{PASSWORD}"}}',
        f'innerClientAuthenticationCredentials={{"accessKey":"{ADMIN}","secretKey":"{PASSWORD}"}}',
    ]
)  # fmt: skip

SAME: Final = (
    "createUser -n {n} -b {b} -u alice -p alice-pass -t Normal",
    "createUser -n {n} -c DefaultCluster -u boss -p boss-pass -t Super",
    "getUser -n {n} -b {b} -u alice",
    "getUser -n {n} -b {b} -u nobody",
    "listUser -n {n} -b {b}",
    "listUser -n {n} -b {b} -f ali",
    "listUser -n {n} -c DefaultCluster -f boss",
    "updateUser -n {n} -b {b} -u alice -s disable",
    "getUser -n {n} -b {b} -u alice",
    "updateUser -n {n} -b {b} -u alice -s enable",
    "updateUser -n {n} -b {b} -u alice -p new-pass",
    "updateUser -n {n} -b {b} -u alice -t Super",
    "getUser -n {n} -b {b} -u alice",
    "updateUser -n {n} -b {b} -u alice -t Normal",
    "createAcl -n {n} -b {b} -s User:alice -r Topic:orders,Topic:log* -a Pub,Sub -d Allow",
    "createAcl -n {n} -b {b} -s User:alice -r Group:* -a Sub -i 192.168.1.0/24,10.0.0.1 -d Deny",
    "getAcl -n {n} -b {b} -s User:alice",
    "listAcl -n {n} -b {b}",
    "listAcl -n {n} -b {b} -s User:ali -r orders",
    "updateAcl -n {n} -b {b} -s User:alice -r Topic:orders -a Pub -d Allow",
    "getAcl -n {n} -b {b} -s User:alice",
    "deleteAcl -n {n} -b {b} -s User:alice -r Topic:orders",
    "getAcl -n {n} -b {b} -s User:alice",
    "deleteAcl -n {n} -b {b} -s User:alice",
    "getAcl -n {n} -b {b} -s User:alice",
    "deleteUser -n {n} -b {b} -u boss",
    "listUser -n {n} -c DefaultCluster",
)

REFUSED: Final = (
    "createUser -n {n} -b {b} -u alice -p x -t Normal",
    "createAcl -n {n} -b {b} -s User:alice -r Topic:x -a Fly -d Allow",
    "createAcl -n {n} -b {b} -s alice -r Topic:x -a Pub -d Allow",
)
"""Both refuse; with other codes and words."""


def shown(text: str) -> list[str]:
    """Lines as both should have them. No password is shown here: that column is left out."""
    for pattern, replacement, _ in EVERYWHERE:
        text = re.sub(pattern, replacement, text)
    rows = []
    for line in text.splitlines():
        words = line.split()
        if words and words[-1] in ("enable", "disable"):
            words = [words[0], *words[-2:]]
        if words and not line.startswith("\t"):
            rows.append(" ".join(words))
    return rows


@pytest.fixture
def sides(tmp_path: Path) -> Iterator[list[dict[str, str]]]:
    """The real cluster and ours."""
    nameserver, broker = free_port(), free_port(-2, 1)
    real, ours = str(tmp_path / "real"), Guarded(tmp_path)
    try:
        peer("start", real, str(nameserver), str(broker), RMQ_BROKER_EXTRA=WITH_ACL)
        ours.start()
        yield [
            {"n": f"127.0.0.1:{nameserver}", "b": f"127.0.0.1:{broker}"},
            {"n": ours.doors["nameserver"], "b": ours.doors["broker"]},
        ]
    finally:
        peer("kill", real)
        ours.stop()


def home_of(directory: Path, user: str, password: str) -> Path:
    """`ROCKETMQ_HOME` of a tool that signs as this user."""
    (directory / "conf").mkdir(parents=True)
    (directory / "conf" / "tools.yml").write_text(f"accessKey: {user}\nsecretKey: {password}\n")
    return directory


def test_users_and_access_lists(sides: list[dict[str, str]], tmp_path: Path) -> None:
    real, ours = sides
    with driver.Driver(home_of(tmp_path / "home", ADMIN, PASSWORD)) as java:

        def run(step: str, **values: str) -> str:
            return java.run(*step.format(**values).split(), limit_ms=120_000)

        for step in SAME:
            theirs, our = [shown(run(step, **side)) for side in sides]
            assert our == theirs, step
        for step in REFUSED:
            assert ["CODE: " in run(step, **side) for side in sides] == [True, True], step
        for step in (
            "createUser -n {n} -b {b} -u carol -p carol-pass -t Normal",
            "createAcl -n {n} -b {b} -s User:carol -r Topic:c -a Pub -d Allow",
        ):
            assert "success" in run(step, **real)
        both = {"n": ours["n"], "f": real["b"], "t": ours["b"]}
        assert "success" in run("copyUser -n {n} -f {f} -t {t} -u carol", **both)
        assert "success" in run("copyAcl -n {n} -f {f} -t {t} -s User:carol", **both)
        assert "Topic:c [Pub] null Allow" in " ".join(run("getAcl -n {n} -b {b} -s User:carol", **ours).split())
        printed = run("listUser -n {n} -b {b}", **ours)
        assert "carol" in printed
        assert "carol-pass" not in printed
    with driver.Driver(home_of(tmp_path / "carol", "carol", "carol-pass")) as java:
        for side in sides:  # who is no administrator makes none
            refused = java.run(
                *f"createUser -n {side['n']} -b {side['b']} -u eve -p e -t Super".split(), limit_ms=120_000
            )
            assert "CODE: 16" in refused
    with driver.Driver(home_of(tmp_path / "nobody", ADMIN, "wrong-password")) as java:
        refused = java.run(*f"listUser -n {ours['n']} -b {ours['b']}".split(), limit_ms=120_000)
        assert "CODE: 16" in refused
