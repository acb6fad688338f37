"""Events posted by clients of others (the cloudevents package over httpx, urllib, curl), read by native consumers."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import urllib.request
from datetime import UTC, datetime

import httpx
import pytest
from cloudevents.core.bindings.http import HTTPMessage, from_http, to_binary, to_structured
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent

from gantrymq.client import BlockingProducer, BlockingPullConsumer
from gantrymq.client.events import event_of, message_of
from interop_tests.cloudevents_sinks import Sink, assigned


@pytest.fixture
def url(server):
    host, port = server.address("cloudevents")
    return f"http://{host}:{port}"


@pytest.fixture(scope="module")
def http():
    with httpx.Client(timeout=60) as client:
        yield client


def package_event(identity, data, **attributes):
    attributes = {"id": identity, "source": "/interop", "type": "line1.temp", "specversion": "1.0", **attributes}
    return CloudEvent(attributes={"time": datetime.now(UTC), **attributes}, data=data)


def read_all(server, topic, count):
    """`count` messages of a topic by event id, through the native pull API."""
    found = {}
    with BlockingPullConsumer(server.doors["nameserver"], group=f"g-{topic}") as consumer:
        for queue in assigned(consumer, topic):
            consumer.seek(queue, "earliest")
        for _ in range(50):
            for message in consumer.pull(wait_s=1.0):
                found[message.property("CE_id")] = message
            if len(found) >= count:
                return found
    raise AssertionError(f"{len(found)} of {count} messages")


def test_package_events_in_both_modes(server, url, http):
    topic = "ce-package"
    for index, convert in enumerate((to_binary, to_structured)):
        event = package_event(
            f"{index}", {"t": 21.5, "ü": "€"}, subject="Kühlhaus €", datacontenttype="application/json"
        )
        message = convert(event, JSONFormat())
        assert http.post(f"{url}/topics/{topic}", headers=message.headers, content=message.body).status_code == 202
    found = read_all(server, topic, 2)
    for message in found.values():
        assert (message.topic, message.tag) == (topic, "line1.temp")
        assert message.property("CE_subject") == "Kühlhaus €"
        assert json.loads(message.body) == {"t": 21.5, "ü": "€"}


def test_package_reads_what_is_delivered(url, http):
    topic = "ce-back"
    for mode in ("binary", "structured"):
        with Sink() as sink:
            config = {"topic": topic, "contentmode": mode}
            made = http.post(f"{url}/subscriptions", json={"sink": sink.url, "protocol": "HTTP", "config": config})
            assert made.status_code == 201
            event = package_event(mode, {"n": [1, 2]}, subject="a b", datacontenttype="application/json")
            message = to_binary(event, JSONFormat())
            assert http.post(f"{url}/topics/{topic}", headers=message.headers, content=message.body).status_code == 202
            (hook,) = sink.wait(len)
            read = from_http(HTTPMessage(hook.headers, hook.body), JSONFormat(), CloudEvent)
            assert (read.get_id(), read.get_subject(), read.get_data()) == (mode, "a b", {"n": [1, 2]})
            assert read.get_source() == "/interop"
            assert http.delete(f"{url}{made.headers['location']}").status_code == 204


def test_batch_of_many(server, url, http):
    events = [{"specversion": "1.0", "id": str(n), "source": "/b", "type": "t", "data": {"n": n}} for n in range(500)]
    answer = http.post(
        f"{url}/topics/ce-batch", json=events, headers={"content-type": "application/cloudevents-batch+json"}
    )
    assert answer.status_code == 202
    found = read_all(server, "ce-batch", 500)
    assert {int(key) for key in found} == set(range(500))
    assert all(json.loads(found[str(n)].body) == {"n": n} for n in range(500))


def test_bytes_are_kept(server, url, http):
    body = bytes(range(256)) * 1000
    headers = {
        "ce-id": "raw",
        "ce-source": "/x",
        "ce-type": "bytes",
        "ce-specversion": "1.0",
        "content-type": "image/png",
    }
    assert http.post(f"{url}/topics/ce-bytes", headers=headers, content=body).status_code == 202
    assert (
        http.post(
            f"{url}/topics/ce-bytes", headers=headers | {"ce-id": "chunked"}, content=iter([body[:7], body[7:]])
        ).status_code
        == 202
    )
    found = read_all(server, "ce-bytes", 2)
    assert found["raw"].body == found["chunked"].body == body


def test_urllib(url):
    body = b'{"specversion":"1.0","id":"u","source":"/u","type":"t"}'
    request = urllib.request.Request(f"{url}/topics/ce-urllib", body, {"content-type": "application/cloudevents+json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert answer.status == 202


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_with_expect(url):
    command = ["curl", "-sS", "-o", "/dev/null", "-w", "%{http_code}", "-H", "Expect: 100-continue", "-H", "ce-id: c"]
    command += [
        "-H",
        "ce-source: /c",
        "-H",
        "ce-type: t",
        "-H",
        "ce-specversion: 1.0",
        "-H",
        "Content-Type: text/plain",
    ]
    command += ["--data-binary", "x" * 5000, "--noproxy", "*", f"{url}/topics/ce-curl"]
    assert subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout == "202"


def test_refusals_are_problems(url, http):
    answer = http.post(f"{url}/topics/t", json={})
    assert (answer.status_code, answer.headers["content-type"]) == (400, "application/problem+json")
    assert "missing or empty" in answer.json()["detail"]
    assert http.post(f"{url}/topics/$SYS", json={}).status_code == 403
    assert http.get(f"{url}/topics/t").status_code == 405
    assert http.get(f"{url}/nothing").status_code == 404
    assert http.get(f"{url}/healthz").json() == {"status": "ok"}


def test_pipelining_and_garbage_disturb_nobody(server, url, http):
    address = server.address("cloudevents")
    with (
        socket.create_connection(address, timeout=60) as pipelined,
        socket.create_connection(address, timeout=60) as broken,
    ):
        request = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"
        last = b"GET /nothing HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
        pipelined.sendall(request * 10 + last)
        broken.sendall(b"\x16\x03\x01 this is no HTTP\r\n\r\n")
        assert broken.makefile("rb").read().startswith(b"HTTP/1.1 400 ")
        answers = pipelined.makefile("rb").read()
        assert answers.count(b"HTTP/1.1 200 ") == 10
        assert answers.count(b"HTTP/1.1 404 ") == 1
    assert http.get(f"{url}/healthz").status_code == 200


def test_the_native_client_and_this_door_have_the_same_events(server, url, http):
    """`gantrymq.client.events`: sent there and pushed to a webhook, posted here and read there, natively alike."""
    topic = "ce-native"
    attributes = {"subject": "a b", "partitionkey": "p", "exta": 7, "extb": True, "datacontenttype": "application/json"}
    posted = package_event("posted", {"n": [1, 2]}, **attributes)
    with Sink() as sink:
        config = {"topic": topic, "contentmode": "structured"}
        made = http.post(f"{url}/subscriptions", json={"sink": sink.url, "protocol": "HTTP", "config": config})
        assert made.status_code == 201
        message = to_structured(posted, JSONFormat())
        assert http.post(f"{url}/topics/{topic}", headers=message.headers, content=message.body).status_code == 202
        sent = CloudEvent({**posted.get_attributes(), "id": "sent"}, posted.get_data())
        with BlockingProducer(server.doors["nameserver"]) as producer:
            producer.send(message_of(sent, topic))
        hooks = sink.wait(lambda found: len(found) >= 2)
        read = [from_http(HTTPMessage(hook.headers, hook.body), JSONFormat(), CloudEvent) for hook in hooks]
        pushed = {event.get_id(): (event.get_attributes(), event.get_data()) for event in read}
        assert http.delete(f"{url}{made.headers['location']}").status_code == 204
    found = read_all(server, topic, 2)
    for event in (posted, sent):
        wanted = event.get_attributes(), event.get_data()
        back = event_of(found[event.get_id()])
        assert (back.get_attributes(), back.get_data()) == wanted
        assert pushed[event.get_id()] == wanted
    one, other = (found[name].property_map() for name in ("posted", "sent"))
    differ = {"UNIQ_KEY", "KEYS", "CE_id", "CLUSTER", "WAIT"}
    assert {name: value for name, value in one.items() if name not in differ} == {
        name: value for name, value in other.items() if name not in differ
    }
