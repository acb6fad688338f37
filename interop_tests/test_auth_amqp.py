"""Users and rights at the AMQP door, with pika: logins, RabbitMQ's permissions and texts, native rights, and what is lost at once."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pika
import pika.exceptions
import pytest

from gantrymq.cli.security.certificates import Authority
from interop_tests import commands
from interop_tests.accounts import ADMIN, PASSWORD, Guarded
from interop_tests.frameworks.environment import Framework
from interop_tests.waiting import until


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("certs")
    authority = Authority(directory, 2)
    authority.issue("server", "localhost", ["localhost", "127.0.0.1"])
    authority.issue("machine", "machine", [])
    authority.issue("stranger", "stranger", [])
    return directory


@pytest.fixture(scope="module")
def server(certs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    tls = (f"tls.cert={certs}/server.pem", f"tls.key={certs}/server.key", f"tls.client_ca={certs}/ca.pem")
    listeners = "amqp.listeners=tcp://127.0.0.1:0,tls://127.0.0.1:0?client_cert=optional"
    gantry = Guarded(tmp_path_factory.mktemp("gantry"), settings=(*tls, listeners))
    try:
        gantry.start()
        gantry.add_user("rabbit", "rabbit-pass", amqp={"/": ["^jobs", "^(jobs|amq\\.default|logs)$", "^(jobs|logs)"]})
        gantry.add_user(
            "native", "native-pass", ("queue:work*", "create,sub,update,delete,pub"), ("topic:events", "create,pub,sub")
        )
        gantry.add_user("topical", "t", amqp={"/": [".*", ".*", ".*"]},
                        amqpTopics={"/": {"amq.topic": ["^{username}\\.", ""]}})  # fmt: skip
        gantry.add_user("elsewhere", "e", amqp={"/other": [".*", ".*", ".*"]})
        gantry.add_user("machine", "unused", ("queue:m", "create,sub"))
        yield gantry
    finally:
        gantry.stop()


def connect(server: Guarded, user: str, password: str) -> pika.BlockingConnection:
    host, port = server.address("amqp")
    return pika.BlockingConnection(
        pika.ConnectionParameters(host, port, credentials=pika.PlainCredentials(user, password))
    )


def refused(connection: pika.BlockingConnection, act: object) -> str:
    """The text of a channel that is closed for what `act(channel)` does."""
    channel = connection.channel()

    def act_and_hear() -> None:
        act(channel)  # type: ignore[operator]
        channel.queue_declare("jobs-after", passive=True)  # a publish is answered by the next method

    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        act_and_hear()
    assert caught.value.reply_code == 403, caught.value
    return str(caught.value.reply_text)


def test_logins(server: Guarded) -> None:
    connect(server, ADMIN, PASSWORD).close()
    for user, password in (("guest", "guest"), ("rabbit", "wrong"), ("nobody", "x"), ("rabbit", "")):
        with pytest.raises(pika.exceptions.ProbableAuthenticationError, match="ACCESS_REFUSED"):
            connect(server, user, password)
    with pytest.raises(
        pika.exceptions.ProbableAccessDeniedError, match="access to vhost '/' refused for user 'elsewhere'"
    ):
        connect(server, "elsewhere", "e")


def test_rabbitmq_permissions(server: Guarded) -> None:
    connection = connect(server, "rabbit", "rabbit-pass")
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare("jobs", durable=True)
    channel.basic_publish("", "jobs", b"one")
    assert channel.basic_get("jobs", auto_ack=True)[2] == b"one"
    assert refused(connection, lambda ch: ch.queue_declare("other")) == (
        "ACCESS_REFUSED - configure access to queue 'other' in vhost '/' refused for user 'rabbit'"
    )
    text = refused(connection, lambda ch: ch.basic_publish("amq.topic", "k", b"x"))
    assert text == "ACCESS_REFUSED - write access to exchange 'amq.topic' in vhost '/' refused for user 'rabbit'"
    assert "read access to exchange 'amq.topic'" in refused(
        connection, lambda ch: ch.queue_bind("jobs", "amq.topic", "k")
    )
    assert "access to queue 'secret'" in refused(connection, lambda ch: ch.queue_declare("secret", passive=True))
    assert "read access to queue 'secret'" in refused(connection, lambda ch: ch.basic_consume("secret", print))
    connection.close()


def test_line_ends_in_names_give_no_right(server: Guarded) -> None:
    """They are dropped from names before the right is asked for, so that no user reads `secretjobs` as somebody who may read `jobs`."""
    owner = connect(server, ADMIN, PASSWORD)
    owner.channel().queue_declare("secretjobs", durable=True)
    owner.channel().exchange_declare("secretlogs", "fanout", durable=True)
    connection = connect(server, "rabbit", "rabbit-pass")
    connection.channel().queue_declare("jobs", durable=True)
    for act, text in (
        (lambda ch: ch.queue_declare("secret\njobs", durable=True), "configure access to queue 'secretjobs'"),
        (lambda ch: ch.queue_delete("secret\njobs"), "configure access to queue 'secretjobs'"),
        (lambda ch: ch.queue_purge("secret\r\njobs"), "read access to queue 'secretjobs'"),
        (lambda ch: ch.basic_get("secret\njobs"), "read access to queue 'secretjobs'"),
        (lambda ch: ch.exchange_delete("secret\njobs"), "configure access to exchange 'secretjobs'"),
        (lambda ch: ch.queue_bind("jobs", "secret\nlogs"), "read access to exchange 'secretlogs'"),
        (lambda ch: ch.basic_publish("secret\nlogs", "", b"x"), "write access to exchange 'secretlogs'"),
    ):
        assert text in refused(connection, act)
    connection.close()
    owner.close()


def test_native_rights(server: Guarded) -> None:
    connection = connect(server, "native", "native-pass")
    channel = connection.channel()
    channel.confirm_delivery()
    channel.exchange_declare("events", "topic", durable=True)
    channel.queue_declare("work-1", durable=True)
    channel.queue_bind("work-1", "events", "#")
    channel.basic_publish("events", "a.b", b"hello")
    assert channel.basic_get("work-1", auto_ack=True)[2] == b"hello"
    channel.basic_publish("", "work-1", b"direct")
    assert "exchange 'amq.default'" in refused(connection, lambda ch: ch.basic_publish("", "elsewhere", b"x"))
    assert "exchange 'events2'" in refused(connection, lambda ch: ch.exchange_declare("events2", "topic"))
    connection.close()


def test_topic_permissions(server: Guarded) -> None:
    connection = connect(server, "topical", "t")
    channel = connection.channel()
    channel.confirm_delivery()
    channel.basic_publish("amq.topic", "topical.x", b"mine")
    assert "topic 'other.x'" in refused(connection, lambda ch: ch.basic_publish("amq.topic", "other.x", b"x"))
    connection.close()


def test_a_certificate_is_the_login(server: Guarded, certs: Path) -> None:
    _, port = server.address("amqp.tls")

    def with_certificate(name: str) -> pika.BlockingConnection:
        context = ssl.create_default_context(cafile=certs / "ca.pem")
        context.load_cert_chain(certs / f"{name}.pem", certs / f"{name}.key")
        return pika.BlockingConnection(
            pika.ConnectionParameters(
                "localhost", port, ssl_options=pika.SSLOptions(context, "localhost"),
                credentials=pika.credentials.ExternalCredentials(),
            )
        )  # fmt: skip

    connection = with_certificate("machine")
    connection.channel().queue_declare("m")
    connection.close()
    with pytest.raises(pika.exceptions.ProbableAuthenticationError):
        with_certificate("stranger")


@pytest.mark.slow
def test_amqplain_and_external_by_kombu(server: Guarded, certs: Path, tmp_path: Path) -> None:
    host, port = server.address("amqp")
    framework = Framework(
        tmp_path, AMQP_HOST=host, AMQP_PORT=str(port), AMQPS_PORT=str(server.address("amqp.tls")[1]), CERTS=str(certs),
        AMQP_USER=ADMIN, AMQP_PASSWORD=PASSWORD,
    )  # fmt: skip
    framework.run("kombu_logins")


def test_a_consumer_loses_its_right_at_once(server: Guarded) -> None:
    server.add_user("watcher", "w", amqp={"/": ["^watched$", ".*", "^watched$"]})
    connection = connect(server, "watcher", "w")
    channel = connection.channel()
    channel.queue_declare("watched")
    cancelled = threading.Event()
    channel.add_on_cancel_callback(lambda frame: cancelled.set())
    channel.basic_consume("watched", lambda *_: None)
    server.accounts(lambda accounts: accounts.update_user("watcher", amqp={"/": ["", "", ""]}))
    until(lambda: connection.process_data_events(0) or cancelled.is_set(), 20)
    server.accounts(lambda accounts: accounts.delete_user("watcher"))
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="deleted or disabled"):
        until(lambda: connection.process_data_events(0), 20)


@pytest.mark.parametrize(
    ("user", "action", "resource", "vhost", "answer"),
    [
        ("rabbit", "configure", "queue:jobs1", "/", "allowed: user:rabbit: configure '^jobs' in vhost /"),
        ("rabbit", "write", "queue:jobs1", "/", "refused: user:rabbit: write '^(jobs|amq\\\\.default|logs)$' in vhost /"),
        ("native", "configure", "queue:work7", "/", "allowed: user:native: allow"),
        ("native", "read", "exchange:events", "/", "allowed: user:native: allow"),
        ("native", "read", "exchange:others", "/", "refused: no rule"),
        ("elsewhere", "read", "queue:q", "/", "refused: no permission in vhost /"),
        ("elsewhere", "read", "queue:q", "/other", "allowed: user:elsewhere: read '.*' in vhost /other"),
        ("nobody", "read", "queue:q", "/", "refused: the user was deleted or disabled"),
    ],
)  # fmt: skip
def test_what_decides_is_explained(
    server: Guarded, user: str, action: str, resource: str, vhost: str, answer: str
) -> None:
    words = ("auth", "explain", user, action, resource, "--door", "amqp", "--vhost", vhost)
    found = commands.gantry(*words, "--nameserver", server.nameserver, GANTRY_USER=ADMIN, GANTRY_PASSWORD=PASSWORD)
    assert found.stdout.startswith(answer), found.stdout + found.stderr
    assert found.returncode == (0 if answer.startswith("allowed") else 1)


def test_a_question_that_is_none_of_amqp(server: Guarded) -> None:
    words = ("auth", "explain", "rabbit", "pub", "queue:q", "--door", "amqp", "--nameserver", server.nameserver)
    found = commands.gantry(*words, GANTRY_USER=ADMIN, GANTRY_PASSWORD=PASSWORD)
    assert "at the AMQP door there are the actions configure, write, read" in found.stderr
