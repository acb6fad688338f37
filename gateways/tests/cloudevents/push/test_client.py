import asyncio
import socket
import ssl
import struct
import threading

import pytest

from gantrymq.clock import SystemClock
from gantrymq.net.wheel import TimerWheel
from gantrymq_gateways.cloudevents.push import client as module
from gantrymq_gateways.cloudevents.push.client import SinkClient
from gantrymq_gateways.cloudevents.push.resolver import THREADS_PER_LANE, Resolver, lookup_in_thread
from gantrymq_gateways.cloudevents.rules.guard import SinkGuard
from gantrymq_gateways.cloudevents.subscription import Sink

OPEN = SinkGuard(loopback=True, http=True)
NO_CONTENT = b"HTTP/1.1 204 No Content\r\n\r\n"
RESET, HANG = object(), object()
"""Actions: end with RST; (HANG, data): say that, then nothing."""


class Receiver:
    """An HTTP server whose behaviour is a list of actions, one per request."""

    def __init__(self, actions):
        self.actions = actions
        self.requests = []
        self.connections = 0
        self.server = None

    async def __aenter__(self):
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        self.port = self.server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exc):
        self.server.close()

    async def serve(self, reader, writer):
        self.connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                self.requests.append((head, await reader.readexactly(length)))
                action = self.actions.pop(0) if self.actions else NO_CONTENT
                if action is None:
                    break
                if action is RESET:
                    linger = struct.pack("ii", 1, 0)
                    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                    break
                if action[0] is HANG:
                    writer.write(action[1])
                    await reader.read()
                    break
                writer.write(action)
                if b"204" not in action:
                    break
        except (asyncio.IncompleteReadError, ConnectionResetError):
            pass
        finally:
            writer.close()

    def sink(self, host="127.0.0.1"):
        return Sink(False, host, self.port, f"{host}:{self.port}", "/hook")


def run(scenario, actions=(), **options):
    async def main():
        loop = asyncio.get_running_loop()
        wheel = TimerWheel(SystemClock().monotonic_ms, loop.call_later)
        start = options.pop("lookup", None) or lookup_in_thread(loop)
        client = SinkClient(wheel, options.pop("guard", OPEN), Resolver(wheel, start), **options)
        async with Receiver(list(actions)) as receiver:
            try:
                return await scenario(client, receiver)
            finally:
                client.close()

    return asyncio.run(main())


async def post(client, sink, body=b"x"):
    answer = asyncio.get_running_loop().create_future()
    client.send(sink, [(b"ce-id", b"1")], body, answer.set_result)
    return await answer


def test_connections_are_kept():
    async def scenario(client, receiver):
        answers = [(await post(client, receiver.sink())).status for _ in range(5)]
        assert receiver.connections == 1
        many = await asyncio.gather(*[post(client, receiver.sink()) for _ in range(4)])
        assert receiver.connections == 4
        assert [body for _, body in receiver.requests] == [b"x"] * 9
        return answers + [answer.status for answer in many]

    assert run(scenario) == [204] * 9


def test_a_kept_connection_that_ends_after_the_request_was_sent_is_a_failure():
    """RFC 9110 9.2.2: what was sent may have been done; the sink sees it once in this attempt."""

    async def scenario(client, receiver):
        first = await post(client, receiver.sink())
        second = await post(client, receiver.sink())
        assert len(receiver.requests) == 2
        return first.status, second.status, bool(second.failure), receiver.connections

    assert run(scenario, [NO_CONTENT, None, NO_CONTENT]) == (204, 0, True, 1)


def test_a_kept_connection_that_was_reset_after_the_request_was_sent_is_a_failure():
    async def scenario(client, receiver):
        statuses = [(await post(client, receiver.sink())).status for _ in range(2)]
        return statuses, len(receiver.requests)

    assert run(scenario, [NO_CONTENT, RESET]) == ([204, 0], 2)


def test_a_kept_connection_that_is_closing_is_replaced_before_anything_is_sent():
    async def scenario(client, receiver):
        first = await post(client, receiver.sink())
        (kept,) = client._idle[receiver.sink().origin]
        kept._transport.close()  # its end is not heard of before the next turn
        second = await post(client, receiver.sink())
        return first.status, second.status, receiver.connections, len(receiver.requests)

    assert run(scenario) == (204, 204, 2, 2)


@pytest.mark.parametrize("status", [200, 500])
def test_an_answer_without_an_end_counts_by_its_status(status):
    async def scenario(client, receiver):
        answer = await post(client, receiver.sink())
        return answer.status, answer.failure

    half = b"HTTP/1.1 %d Said\r\ncontent-length: 9\r\n\r\nhalf" % status
    assert run(scenario, [(HANG, half)], timeout_ms=200) == (status, "")


def test_a_new_connection_that_closes_is_a_failure():
    async def scenario(client, receiver):
        answer = await post(client, receiver.sink())
        return answer.status, bool(answer.failure), receiver.connections

    assert run(scenario, [None]) == (0, True, 1)


def test_body_until_close():
    async def scenario(client, receiver):
        return (await post(client, receiver.sink())).status

    assert run(scenario, [b"HTTP/1.1 201 Created\r\n\r\nx"]) == 201


def test_redirects_are_not_followed():
    async def scenario(client, receiver):
        answer = await post(client, receiver.sink())
        return answer.status, len(receiver.requests)

    assert run(scenario, [b"HTTP/1.1 302 Found\r\nlocation: /y\r\ncontent-length: 0\r\n\r\n"]) == (302, 1)


def test_timeout():
    async def scenario(client, receiver):
        answer = await post(client, receiver.sink())
        return answer.status, answer.failure

    assert run(scenario, [b"HTTP/1.1 204"], timeout_ms=100) == (0, "no answer within 100 ms")


def test_refused_connection():
    async def scenario(client, receiver):
        receiver.server.close()
        await receiver.server.wait_closed()
        return await post(client, receiver.sink())

    answer = run(scenario)
    assert answer.status == 0
    assert answer.failure


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "2130706433", "127.1"])
def test_addresses_are_checked_when_dialling(host):
    async def scenario(client, receiver):
        answer = await post(client, receiver.sink(host))
        return answer.status, "is allowed" in answer.failure, receiver.connections

    assert run(scenario, guard=SinkGuard(loopback=False, http=True)) == (0, True, 0)


def test_a_name_that_no_resolver_takes():
    async def scenario(client, receiver):
        return (await post(client, receiver.sink("a..b"))).status

    assert run(scenario) == 0


def test_proxies_of_the_environment_are_not_used(monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")

    async def scenario(client, receiver):
        return (await post(client, receiver.sink())).status

    assert run(scenario) == 204


def test_headers_that_http_cannot_carry():
    async def scenario(client, receiver):
        answer = asyncio.get_running_loop().create_future()
        client.send(receiver.sink(), [(b"ce-id", b"1\r\nx: y")], b"", answer.set_result)
        return (await answer).status, len(receiver.requests)

    assert run(scenario) == (400, 0)


def test_cancel():
    async def scenario(client, receiver):
        called = []
        waiting = client.send(receiver.sink(), [], b"", called.append)
        waiting.cancel()
        after = await post(client, receiver.sink())
        return called, after.status

    assert run(scenario) == ([], 204)


def test_idle_connections_are_closed(monkeypatch):
    monkeypatch.setattr(module, "IDLE_MS", 50)

    async def scenario(client, receiver):
        lost, all_lost = client.lost, asyncio.Event()
        client.lost = lambda connection: (lost(connection), all_lost.set())
        await post(client, receiver.sink())
        await all_lost.wait()
        return client._idle, client._sweeping

    assert run(scenario) == ({}, False)


def test_few_idle_connections_are_kept(monkeypatch):
    monkeypatch.setattr(module, "IDLE_PER_SINK_MAX", 2)

    async def scenario(client, receiver):
        await asyncio.gather(*[post(client, receiver.sink()) for _ in range(5)])
        return [len(idle) for idle in client._idle.values()]

    assert run(scenario) == [2]


def test_tls_is_checked():
    async def scenario(client, receiver):
        sink = Sink(True, "127.0.0.1", receiver.port, "127.0.0.1", "/")
        answer = await post(client, sink)
        context = client._context()
        return answer.status, context.check_hostname, context.verify_mode

    assert run(scenario, timeout_ms=200) == (0, True, ssl.CERT_REQUIRED)


class SlowNames:
    """A resolver that never comes back for `slow*`."""

    def __init__(self):
        self.begun = []

    def __call__(self, text, on_found):
        self.begun.append(text)
        if not text.startswith("slow"):
            asyncio.get_running_loop().call_soon(on_found, ("127.0.0.1",))


@pytest.mark.parametrize("hanging", [2, 8])
def test_names_that_hang_hold_up_only_themselves(hanging):
    names = SlowNames()

    async def scenario(client, receiver):
        answers = []
        for number in range(hanging):
            for _ in range(4):
                client.send(receiver.sink(f"slow{number}.test"), [], b"", answers.append)
        healthy = await post(client, receiver.sink("good.test"))
        return healthy.status, answers

    assert run(scenario, lookup=names) == (204, [])
    assert names.begun == [*[f"slow{number}.test" for number in range(hanging)], "good.test"]


def test_an_attempt_that_had_no_thread_for_its_name_is_unsent():
    async def scenario(client, receiver):
        answers = {}
        done = asyncio.Event()

        def take(number, answer):
            answers[number] = answer.unsent
            if len(answers) == THREADS_PER_LANE + 1:
                done.set()

        for number in range(THREADS_PER_LANE + 1):
            sink = receiver.sink(f"slow{number}.test")
            client.send(sink, [], b"", lambda answer, number=number: take(number, answer))
        await done.wait()
        return [number for number, unsent in answers.items() if unsent]

    assert run(scenario, lookup=SlowNames(), timeout_ms=100) == [THREADS_PER_LANE]


def test_a_look_up_that_ends_after_its_exchange_was_cancelled():
    async def scenario(client, receiver):
        waiting = {}
        begun = asyncio.Event()

        def begin(text, on_found):
            waiting[text] = on_found
            begun.set()

        client._resolver = Resolver(client._wheel, begin)
        cancelled = client.send(receiver.sink("a.test"), [], b"", lambda answer: None)
        answer = asyncio.get_running_loop().create_future()
        client.send(receiver.sink("a.test"), [], b"", answer.set_result)
        await begun.wait()
        await asyncio.sleep(0)
        cancelled.cancel()
        waiting["a.test"](("127.0.0.1",))
        return (await answer).status

    assert run(scenario) == 204


@pytest.mark.parametrize("hanging", [2, 8])
def test_threads_that_hang_hold_up_no_other_name(monkeypatch, hanging):
    over = threading.Event()

    def getaddrinfo(name, port, **options):
        if name.startswith("slow"):
            over.wait()
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", port))]

    async def scenario(client, receiver):
        monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
        answers = []
        for number in range(hanging):
            client.send(receiver.sink(f"slow{number}.test"), [], b"", answers.append)
        try:
            return (await post(client, receiver.sink("good.test"))).status, answers
        finally:
            over.set()

    assert run(scenario) == (204, [])
