import pytest

from gantrymq.broker.port import Start
from gantrymq.model.errors import GantryError
from gantrymq_gateways.cloudevents.rules.guard import SinkGuard
from gantrymq_gateways.cloudevents.subscription import parse_sink, parse_subscription, read_stored

OPEN = SinkGuard(loopback=True, http=True)
STRICT = SinkGuard(loopback=False, http=False)


def document(**changes):
    base = {"sink": "http://127.0.0.1:1/x", "protocol": "HTTP", "config": {"topic": "t"}}
    return {name: value for name, value in {**base, **changes}.items() if value is not ...}


def config(**members):
    return document(config={"topic": "t", **members})


def test_defaults_are_shown():
    subscription = parse_subscription("id", document(), OPEN)
    assert subscription.shown() == {
        "id": "id",
        "sink": "http://127.0.0.1:1/x",
        "protocol": "HTTP",
        "config": {"topic": "t", "from": "end", "contentmode": "binary", "maxattempts": 10, "maxage_s": 86400},
        "status": "active",
    }
    assert subscription.matches_all


def test_stored_and_read():
    given = document(
        types=["a", "b"], source="/s", filters=[{"prefix": {"id": "x"}}], config={"topic": "t", "from": "earliest"}
    )
    subscription = parse_subscription("id", given, OPEN)
    subscription.disabled = "the sink answered 410 Gone"
    again = read_stored("id", subscription.stored(), OPEN)
    assert again.shown() == subscription.shown()
    assert (again.placed, again.start) == (True, Start("earliest"))
    attributes = {"id": "x1", "type": "a", "source": "/s"}
    assert again.matches(attributes)
    for changed in ({"id": "y"}, {"type": "c"}, {"source": "/t"}):
        assert not again.matches({**attributes, **changed})


@pytest.mark.parametrize("value", [b"", b"{}", b"[]", b'{"document":1,"disabled":""}', b"\xff"])
def test_unreadable_rows_are_refused(value):
    with pytest.raises(GantryError):
        read_stored("id", value, OPEN)


@pytest.mark.parametrize(
    ("text", "at_ms"),
    [
        ("1970-01-01T00:00:01Z", 1000),
        ("2024-01-01T00:00:00.5+01:00", 1704063600500),
        ("2024-01-01t00:00:00z", 1704067200000),
        ("2016-12-31T23:59:60Z", 1483228799000),
    ],
)
def test_start_by_time(text, at_ms):
    assert parse_subscription("id", config(**{"from": text}), OPEN).start == Start("time", at_ms)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([], "JSON object"),
        (document(id="x"), "id is assigned"),
        (document(sinkcredential={}), "sinkcredential is not supported"),
        (document(protocolsettings={}), "protocolsettings is not supported"),
        (document(other=1), "unknown member 'other'"),
        (document(protocol="MQTT5"), "protocol must be 'HTTP'"),
        (document(protocol=...), "protocol must be 'HTTP'"),
        (document(sink=...), "sink must be"),
        (document(sink=5), "sink must be"),
        (document(sink="http://h/" + "x" * 3000), "sink must be"),
        (document(types=[]), "types must be"),
        (document(types=[""]), "types must be"),
        (document(types="a"), "types must be"),
        (document(types=["a"] * 101), "types has 101"),
        (document(source=""), "source must be"),
        (document(source="a b"), "source must be"),
        (document(filters={}), "filters must be an array"),
        (document(filters=[{"sql": "1"}]), "SQL is not supported"),
        (document(config=...), "config must be"),
        (document(config={}), "config.topic"),
        (config(topic=""), "config.topic"),
        (config(retries=3), "unknown key config.retries"),
        (config(contentmode="batched"), "config.contentmode"),
        (config(maxattempts=0), "config.maxattempts"),
        (config(maxattempts=101), "config.maxattempts"),
        (config(maxattempts=True), "config.maxattempts"),
        (config(maxattempts="3"), "config.maxattempts"),
        (config(maxage_s=0), "config.maxage_s"),
        (config(maxage_s=604_801), "config.maxage_s"),
        (config(maxage_s=True), "config.maxage_s"),
        (config(**{"from": "now"}), "config.from"),
        (config(**{"from": 5}), "config.from"),
        (config(**{"from": "0000-01-01T00:00:00Z"}), "config.from"),
    ],
)
def test_refused(given, words):
    with pytest.raises(GantryError) as caught:
        parse_subscription("id", given, OPEN)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("text", "host", "port", "authority", "target"),
    [
        ("http://127.0.0.1/", "127.0.0.1", 80, "127.0.0.1", "/"),
        ("https://h.example", "h.example", 443, "h.example", "/"),
        ("https://H.example:8443/a/b?c=d&e", "h.example", 8443, "h.example:8443", "/a/b?c=d&e"),
        ("http://[::1]:8080/x", "::1", 8080, "[::1]:8080", "/x"),
    ],
)
def test_sink(text, host, port, authority, target):
    sink = parse_sink(text, OPEN)
    assert (sink.host, sink.port, sink.authority, sink.target) == (host, port, authority, target)
    assert sink.secure == text.startswith("https")


@pytest.mark.parametrize(
    "text",
    [
        "ftp://h/", "//h/", "/x", "h", "http:///x", "http://", "http://h:0x1/", "http://h:99999/", "http://h:0/", "http://u:p@h/",
        "http://h/#f", "http://h/a b", "http://h/\r\nx", "http://h\t/", "http://hä/", "http://h/ä", "http://a_b c/",
        "http://[::1/", "http://10.0.0.1/", "http://169.254.169.254/latest", "http://[fd00::1]/",
        "http://2130706433/", "http://0x7f000001/", "http://0x7f.1/", "http://127.1/", "http://0177.0.0.1/", "http://169.254.43518/", "http://127.0.0.1./",
        "http://a.0x/", "http://h.example.5/",
    ],
)  # fmt: skip
def test_sink_refused(text):
    with pytest.raises(GantryError):
        parse_sink(text, OPEN)


def test_strict_door_wants_https_and_public_addresses():
    parse_sink("https://h.example/", STRICT)
    for text in ("http://h.example/", "https://127.0.0.1/", "https://[::1]/", "https://[::ffff:127.0.0.1]/"):
        with pytest.raises(GantryError):
            parse_sink(text, STRICT)
