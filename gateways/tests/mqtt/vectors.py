"""Wire vectors of MQTT 3.1 and 3.1.1 as data: what a server must read, and what it must refuse."""

from __future__ import annotations

from gantrymq_gateways.mqtt.wire.codec import (
    Ack,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    Publish,
    Subscribe,
    Unsubscribe,
    Will,
)

CONNECT = bytes.fromhex("100d 0004 4d515454 04 02 003c 0001 63")
"""Clean session, keep-alive 60, client id `c`."""

GOOD: list[tuple[str, bytes, Packet]] = [
    ("connect", CONNECT, Connect("c", True, 60)),
    ("connect 3.1", bytes.fromhex("100f 0006 4d5149736470 03 02 003c 0001 63"), Connect("c", True, 60, 3)),
    ("connect, empty client id", bytes.fromhex("100c 0004 4d515454 04 02 0000 0000"), Connect("", True, 0)),
    ("connect, kept session", bytes.fromhex("100d 0004 4d515454 04 00 0000 0001 63"), Connect("c", False, 0)),
    (
        "connect with everything",
        bytes.fromhex("101c 0004 4d515454 04 f6 000a 0001 63 0001 74 0003 626965 0001 75 0002 7077"),
        Connect("c", True, 10, 4, Will(b"t", b"bie", 2, True), "u", b"pw"),
    ),
    (
        "connect, empty will and password",
        bytes.fromhex("1013 0004 4d515454 04 c4 0000 0000 0001 74 0000 0000 0000")[:1]
        + bytes.fromhex("15 0004 4d515454 04 c4 0000 0000 0001 74 0000 0000 0000"),
        Connect("", False, 0, 4, Will(b"t", b"", 0, False), "", b""),
    ),
    ("publish qos 0", bytes.fromhex("3005 0001 74 6869"), Publish(b"t", b"hi", 0, 0)),
    ("publish qos 0, empty", bytes.fromhex("3003 0001 74"), Publish(b"t", b"", 0, 0)),
    ("publish qos 1", bytes.fromhex("3207 0001 74 0102 6869"), Publish(b"t", b"hi", 2, 258)),
    ("publish qos 1, empty", bytes.fromhex("3205 0001 74 ffff"), Publish(b"t", b"", 2, 65535)),
    ("publish qos 1 dup retain", bytes.fromhex("3b07 0001 74 0001 6869"), Publish(b"t", b"hi", 11, 1)),
    ("publish qos 2", bytes.fromhex("3407 0001 74 0001 6869"), Publish(b"t", b"hi", 4, 1)),
    ("publish, two length bytes", b"\x30\x80\x01\x00\x01t" + b"p" * 125, Publish(b"t", b"p" * 125, 0, 0)),
    ("publish, UTF-8 topic", b"\x30\x07\x00\x05\xc3\xa4/\xc3\xb6", Publish("ä/ö".encode(), b"", 0, 0)),
    ("publish, BOM in the topic", b"\x30\x06\x00\x04\xef\xbb\xbfa", Publish(b"\xef\xbb\xbfa", b"", 0, 0)),
    ("puback", bytes.fromhex("4002 1234"), Ack(4, 0x1234)),
    ("pubrec", bytes.fromhex("5002 0001"), Ack(5, 1)),
    ("pubrel", bytes.fromhex("6202 0001"), Ack(6, 1)),
    ("pubcomp", bytes.fromhex("7002 0001"), Ack(7, 1)),
    ("subscribe", bytes.fromhex("8206 0001 0001 23 01"), Subscribe(1, [("#", 1)])),
    (
        "subscribe to three",
        bytes.fromhex("8210 0003 0003 612f62 00 0001 2b 01 0001 63 02"),
        Subscribe(3, [("a/b", 0), ("+", 1), ("c", 2)]),
    ),
    ("unsubscribe", bytes.fromhex("a208 0001 0001 61 0001 62"), Unsubscribe(1, ["a", "b"])),
    ("pingreq", bytes.fromhex("c000"), PingReq()),
    ("disconnect", bytes.fromhex("e000"), Disconnect()),
]

MALFORMED: list[tuple[str, bytes]] = [
    ("reserved type 0", bytes.fromhex("0000")),
    ("reserved type 15", bytes.fromhex("f000")),
    ("CONNACK from a client", bytes.fromhex("20020000")),
    ("SUBACK from a client", bytes.fromhex("9003000100")),
    ("UNSUBACK from a client", bytes.fromhex("b0020001")),
    ("PINGRESP from a client", bytes.fromhex("d000")),
    ("second CONNECT", CONNECT),
    ("PUBLISH QoS 3", bytes.fromhex("3607 0001 74 0001 6869")),
    ("PUBLISH QoS 0 with DUP", bytes.fromhex("3805 0001 74 6869")),
    ("PUBLISH packet id 0", bytes.fromhex("3207 0001 74 0000 6869")),
    ("PUBLISH without packet id", bytes.fromhex("3203 0001 74")),
    ("PUBLISH with half a packet id", bytes.fromhex("3204 0001 74 00")),
    ("PUBLISH empty topic", bytes.fromhex("3004 0000 6869")),
    ("PUBLISH topic longer than the packet", bytes.fromhex("3005 0005 746869")),
    ("PUBLISH of one byte", bytes.fromhex("3001 00")),
    ("PUBLISH to `+`", bytes.fromhex("3003 0001 2b")),
    ("PUBLISH to `a/#`", bytes.fromhex("3005 0003 612f23")),
    ("PUBLISH with NUL in the topic", bytes.fromhex("3003 0001 00")),
    ("PUBLISH with ill-formed UTF-8", bytes.fromhex("3003 0001 ff")),
    ("PUBLISH with an overlong slash", bytes.fromhex("3004 0002 c0af")),
    ("PUBLISH with a surrogate", bytes.fromhex("3005 0003 eda080")),
    ("PUBACK flags", bytes.fromhex("41020001")),
    ("PUBACK packet id 0", bytes.fromhex("40020000")),
    ("PUBACK too long", bytes.fromhex("4003000100")),
    ("PUBACK too short", bytes.fromhex("400100")),
    ("SUBSCRIBE flags", bytes.fromhex("8006 0001 0001 23 01")),
    ("SUBSCRIBE without filters", bytes.fromhex("8202 0001")),
    ("SUBSCRIBE packet id 0", bytes.fromhex("8206 0000 0001 23 01")),
    ("SUBSCRIBE QoS 3", bytes.fromhex("8206 0001 0001 23 03")),
    ("SUBSCRIBE reserved QoS bits", bytes.fromhex("8206 0001 0001 23 81")),
    ("SUBSCRIBE without QoS", bytes.fromhex("8205 0001 0001 23")),
    ("SUBSCRIBE empty filter", bytes.fromhex("8205 0001 0000 01")),
    ("SUBSCRIBE a#", bytes.fromhex("8207 0001 0002 6123 01")),
    ("SUBSCRIBE #/a", bytes.fromhex("8208 0001 0003 232f61 01")),
    ("SUBSCRIBE a+", bytes.fromhex("8207 0001 0002 612b 01")),
    ("SUBSCRIBE NUL", bytes.fromhex("8206 0001 0001 00 01")),
    ("UNSUBSCRIBE flags", bytes.fromhex("a005 0001 0001 61")),
    ("UNSUBSCRIBE without filters", bytes.fromhex("a202 0001")),
    ("UNSUBSCRIBE cut", bytes.fromhex("a204 0001 0001")),
    ("PINGREQ with a body", bytes.fromhex("c00100")),
    ("PINGREQ flags", bytes.fromhex("c100")),
    ("DISCONNECT with a body", bytes.fromhex("e00100")),
    ("DISCONNECT flags", bytes.fromhex("e100")),
    ("five length bytes", bytes.fromhex("30ffffffff7f")),
]
"""To a connected server; each closes the connection."""

MALFORMED_CONNECT: list[tuple[str, bytes]] = [
    ("HTTP", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
    ("AMQP", b"AMQP\x00\x00\x09\x01"),
    ("TLS", bytes.fromhex("16030100c8010000c40303")),
    ("PUBLISH first", bytes.fromhex("3005 0001 74 6869")),
    ("PINGREQ first", bytes.fromhex("c000")),
    ("a huge first packet", bytes.fromhex("10ffffff7f")),
    ("a huge PUBLISH first", bytes.fromhex("30ffffff7f")),
    ("flags of the fixed header", bytes.fromhex("110d 0004 4d515454 04 02 003c 0001 63")),
    ("protocol name", bytes.fromhex("100d 0004 4d515455 04 02 003c 0001 63")),
    ("reserved connect flag", bytes.fromhex("100d 0004 4d515454 04 03 003c 0001 63")),
    ("will QoS without will", bytes.fromhex("100d 0004 4d515454 04 0a 003c 0001 63")),
    ("will retain without will", bytes.fromhex("100d 0004 4d515454 04 22 003c 0001 63")),
    ("will QoS 3", bytes.fromhex("1012 0004 4d515454 04 1e 003c 0001 63 0001 74 0000")),
    ("will topic with a wildcard", bytes.fromhex("1012 0004 4d515454 04 06 003c 0001 63 0001 23 0000")),
    ("will topic empty", bytes.fromhex("1011 0004 4d515454 04 06 003c 0001 63 0000 0000")),
    ("password without user name", bytes.fromhex("1010 0004 4d515454 04 42 003c 0001 63 0001 70")),
    ("cut behind the client id", bytes.fromhex("100d 0004 4d515454 04 82 003c 0001 63")),
    ("bytes behind the end", bytes.fromhex("100e 0004 4d515454 04 02 003c 0001 63 00")),
    ("client id of a control character", bytes.fromhex("100d 0004 4d515454 04 02 003c 0001 01")),
    ("client id with NUL", bytes.fromhex("100d 0004 4d515454 04 02 003c 0001 00")),
    ("client id longer than the packet", bytes.fromhex("100d 0004 4d515454 04 02 003c 0009 63")),
    ("user name with ill-formed UTF-8", bytes.fromhex("1010 0004 4d515454 04 82 003c 0001 63 0001 ff")),
]
"""To a server that waits for CONNECT; each closes the connection without an answer."""

REFUSED_CONNECT: list[tuple[str, bytes, bytes]] = [
    ("level 6", bytes.fromhex("100d 0004 4d515454 06 02 003c 0001 63"), bytes.fromhex("20020001")),
    (
        "level 3 under the new name",
        bytes.fromhex("100d 0004 4d515454 03 02 003c 0001 63"),
        bytes.fromhex("20020001"),
    ),
    ("bridge bit of level 5", bytes.fromhex("100d 0004 4d515454 85 02 003c 0001 63"), bytes.fromhex("20020001")),
    (
        "empty client id, kept session",
        bytes.fromhex("100c 0004 4d515454 04 00 003c 0000"),
        bytes.fromhex("20020002"),
    ),
    (
        "empty client id in 3.1",
        bytes.fromhex("100e 0006 4d5149736470 03 02 003c 0000"),
        bytes.fromhex("20020002"),
    ),
    (
        "client id of 201 bytes",
        bytes.fromhex("10d501 0004 4d515454 04 02 003c 00c9") + b"c" * 201,
        bytes.fromhex("20020002"),
    ),
    (
        "will to a system topic",
        bytes.fromhex("1015 0004 4d515454 04 06 003c 0001 63 0004 24535953 0000"),
        bytes.fromhex("20020005"),
    ),
]
"""CONNECT and the CONNACK that refuses it, before the close."""
