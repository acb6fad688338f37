import pytest

from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.message import Message
from gantrymq_gateways.cloudevents.long_topics import TABLE
from tests.cloudevents.rig import Rig

LONG = "ä" * 60


@pytest.fixture(params=["immediate", "late", "shuffled"])
def rig(request):
    return Rig(mode=request.param)


def test_long_names_are_noted_once(rig):
    for _ in range(2):
        assert rig.post(LONG.replace("ä", "%C3%A4"))[0] == 202
    ((native, foreign),) = rig.port.tables[TABLE].items()
    assert foreign.decode() == LONG
    assert rig.port.log[0].topic == native
    assert rig.port.log[1].topic == native


def test_native_names_of_full_length_are_not(rig):
    assert rig.post("a" * 127)[0] == 202
    assert rig.post("a" * 20)[0] == 202
    assert TABLE not in rig.port.tables


def test_subject_shows_the_name_that_another_door_noted():
    rig = Rig()
    native = rig.topics.native(LONG)
    again = Rig(rig.port.crash(), seed=1)
    again.subscribe(config={"topic": native, "contentmode": "structured"})
    again.port.submit(
        [Message(native, b"", b"TAGS\x01t\x02GANTRY_ORIGIN\x01mqtt\x02", "t")], None, lambda *result: None
    )
    again.run()
    assert f'"subject":"{LONG}/t"'.encode() in again.sender.open[0].body


def test_a_failed_note_is_tried_again(rig):
    rig.port.fail_next("put", ErrorCode.BUSY)
    native = rig.topics.native(LONG)
    rig.run()
    assert rig.topics.foreign == {}
    assert rig.topics.native(LONG) == native
    rig.run()
    assert list(rig.port.tables[TABLE]) == [native]


def test_empty_name(rig):
    with pytest.raises(GantryError):
        rig.topics.native("")
