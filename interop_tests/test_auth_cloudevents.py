"""Users and rights at the CloudEvents door, with curl."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator

import pytest

from interop_tests.accounts import ADMIN, PASSWORD, Guarded

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")

EVENT = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/s", "ce-type": "made"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    gantry = Guarded(tmp_path_factory.mktemp("gantry"))
    try:
        gantry.start()
        gantry.add_user("writer", "writer-pass", ("topic:orders*", "pub"))
        gantry.add_user("reader", "reader-pass", ("topic:orders", "sub"))
        yield gantry
    finally:
        gantry.stop()


def curl(server: Guarded, path: str, user: str = "", *arguments: str, **headers: str) -> tuple[int, str]:
    """Status, and head and body of the answer."""
    host, port = server.address("cloudevents")
    command = ["curl", "-s", "-i", "--max-time", "20", *arguments, f"http://{host}:{port}{path}"]
    for name, value in headers.items():
        command += ["-H", f"{name}: {value}"]
    if user:
        command += ["-u", user]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return int(out.split()[1]), out


def post(server: Guarded, topic: str, user: str = "", *arguments: str) -> tuple[int, str]:
    return curl(server, f"/topics/{topic}", user, "-d", "body", *arguments, **EVENT)


def test_who_may_publish(server: Guarded) -> None:
    for user in ("", "writer:wrong", "nobody:x"):
        status, out = post(server, "orders", user)
        assert (status, "www-authenticate: Basic" in out) == (401, True), user
    assert post(server, "orders", "writer:writer-pass")[0] == 202
    assert post(server, "orders-eu", "writer:writer-pass")[0] == 202
    status, out = post(server, "other", "writer:writer-pass")
    assert (status, "application/problem+json" in out) == (403, True)
    assert post(server, "orders", "reader:reader-pass")[0] == 403
    assert post(server, "other", f"{ADMIN}:{PASSWORD}")[0] == 202


def test_a_challenge_is_answered(server: Guarded) -> None:
    status, out = curl(server, "/subscriptions", "reader:reader-pass", "--anyauth")
    assert "401" in out.splitlines()[0]
    assert out.count("HTTP/1.1 200") == 1
    assert status == 401
    assert curl(server, "/healthz")[0] == 200


def test_who_may_subscribe(server: Guarded) -> None:
    document = json.dumps({"sink": "http://127.0.0.1:9/x", "protocol": "HTTP", "config": {"topic": "orders"}})
    arguments = ("-d", document, "-H", "content-type: application/json")
    assert curl(server, "/subscriptions", "", *arguments)[0] == 401
    assert curl(server, "/subscriptions", "writer:writer-pass", *arguments)[0] == 403
    status, out = curl(server, "/subscriptions", "reader:reader-pass", *arguments)
    assert status == 201
    made = json.loads(out.splitlines()[-1])["id"]
    assert made not in curl(server, "/subscriptions", "writer:writer-pass")[1]
    assert made in curl(server, "/subscriptions", "reader:reader-pass")[1]
    assert curl(server, f"/subscriptions/{made}", "writer:writer-pass", "-X", "DELETE")[0] == 404
    assert curl(server, f"/subscriptions/{made}", "reader:reader-pass", "-X", "DELETE")[0] == 204
