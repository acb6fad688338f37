"""What mqtt_load.py speaks MQTT over: TCP, TLS (any certificate is taken) and WebSocket, each as much of a socket as it needs. Python 3.11 stdlib."""
import base64
import os
import socket
import ssl
import struct

KEY = b"\x37\xfa\x21\x3d"


def masked(data):
    """One binary WebSocket message, as a client sends it."""
    size = len(data)
    head = bytes((0x82, 0x80 | size)) if size < 126 else b"\x82\xfe" + struct.pack("!H", size)
    keys = (KEY * (size // 4 + 1))[:size]
    return head + KEY + (int.from_bytes(data, "big") ^ int.from_bytes(keys, "big")).to_bytes(size, "big")


class Tls:
    """A TLS connection that gives all that has come at once, as TCP does, and not one record a call."""
    def __init__(self, host, port):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        self.sock = context.wrap_socket(tcp(host, port), server_hostname=host)
        self.fileno, self.sendall, self.recv = self.sock.fileno, self.sock.sendall, self.sock.recv
        self.setblocking, self.close = self.sock.setblocking, self.sock.close

    def send(self, data):
        try:
            return self.sock.send(data)
        except ssl.SSLWantWriteError:
            raise BlockingIOError from None

    def recv_into(self, buffer):
        view, at = memoryview(buffer), 0
        while at < len(view):
            try:
                n = self.sock.recv_into(view[at:])
            except ssl.SSLWantReadError:
                if not at:
                    raise BlockingIOError from None
                break
            if not n:
                break
            at += n
        return at


class WebSocket:
    """`sendall` makes one message of its bytes; `send` takes frames that are made already."""
    def __init__(self, host, port):
        self.sock, self.tail, self.ready = tcp(host, port), b"", b""
        key = base64.b64encode(os.urandom(16)).decode()
        self.sock.sendall(f"GET /mqtt HTTP/1.1\r\nHost: {host}:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: {key}\r\n"
                          "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n".encode())
        answer = b""
        while not answer.endswith(b"\r\n\r\n"):
            answer += self.sock.recv(1) or exit(f"no WebSocket: {answer[:80]!r}")
        if not answer.startswith(b"HTTP/1.1 101 "):
            raise SystemExit(f"no WebSocket: {answer[:80]!r}")
        self.fileno, self.send, self.setblocking, self.close = self.sock.fileno, self.sock.send, self.sock.setblocking, self.sock.close

    def sendall(self, data):
        self.sock.sendall(masked(bytes(data)))

    def payload(self):
        """Of all whole frames that have come."""
        data, at, found = self.tail + self.sock.recv(1 << 18), 0, []
        while at + 2 <= len(data):
            size, start = data[at + 1], at + 2
            if size > 125:
                wide = 2 if size == 126 else 8
                size, start = int.from_bytes(data[start:start + wide], "big"), start + wide
            if start + size > len(data):
                break
            if data[at] != 0x82:
                raise SystemExit(f"an unexpected frame: {data[at:start + size].hex()[:80]}")
            found.append(data[start:start + size])
            at = start + size
        self.tail = data[at:]
        return b"".join(found)

    def recv(self, size):
        while not self.ready:
            self.ready = self.payload()
        found, self.ready = self.ready[:size], self.ready[size:]
        return found

    def recv_into(self, buffer):
        data, self.ready = self.ready, b""
        while not data:
            data = self.payload()
        buffer[:len(data)] = data
        return len(data)


def tcp(host, port):
    sock = socket.create_connection((host, port), timeout=20)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


DIAL = {"tcp": tcp, "tls": Tls, "ws": WebSocket}
