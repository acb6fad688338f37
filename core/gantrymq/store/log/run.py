"""Many ordinary messages of one queue as one: what a batch request brings goes into the log without an object per message.

They come as a block (model/batch/block.py), or as the items of SEND_BATCH_MESSAGE (total size, magic, CRC, flag, body length, body, properties length,
properties). Only messages that are nothing but stored fit in here; the others, and whatever is wrong with one, are looked at message by message.
"""

from __future__ import annotations

from operator import add
from typing import Final

from gantrymq.model import properties as props
from gantrymq.model.batch import block
from gantrymq.model.limits import TAG_BYTES_MAX
from gantrymq.model.message import RUN, Message
from gantrymq.store.index.key_hashes import hashes_of_each, id_hashes, key_hash

RUN_FLAG: Final = 0x10000
"""In the `sys_flag` of a run; never in a record."""
RECORDS_MAX: Final = 1000
"""Messages of one run: what a broker's turn takes at once."""

_UNIQ: Final = props.UNIQ_KEY.encode() + props.NAME_END
_KEYS: Final = props.KEYS.encode() + props.NAME_END
_TAGS: Final = props.TAGS.encode() + props.NAME_END
_UNIQ_SIZE: Final = len(_UNIQ)
_WORD_SIZE: Final = len(_KEYS)
_SHARDING: Final = props.SHARDING_KEY.encode() + props.NAME_END
_SPECIAL: Final = (
    b"POP_CK", b"INNER_", b"TIMER_D", b"TRAN_MSG", b"GANTRY_DISPATCH", b"REPLY_TO_CLIENT", b"_SYS_MSG_PRIORITY_", b"__CRC32#",
)  # fmt: skip
"""In names of properties that ask for more than to be stored (remoting/server/sending/specials.py)."""


class Run(Message):
    """The messages share topic, queue, times, hosts and flags; `properties` are the broker's own, which end those of each. `body` is
    empty. `queue_offset` before it is stored: the half message's that it was, or -1."""

    __slots__ = (
        "bodies",
        "bytes",
        "columns",
        "flags",
        "grouped",
        "hashes",
        "key_counts",
        "key_texts",
        "positions",
        "tags",
        "texts",
        "unique",
    )

    def __init__(self, topic: str, queue_id: int, born_ms: int, own: bytes) -> None:
        super().__init__(topic, b"", own, "", (), queue_id, born_ms)
        self.kind = RUN
        self.sys_flag = RUN_FLAG
        self.bodies: list[bytes] = []
        self.texts: list[bytes] = []
        """Properties of the sender."""
        self.tags: list[str] = []
        self.unique: list[tuple[str, ...]] = []
        """What the index holds of each: UNIQ_KEY, then the keys. Empty for a block: see `hashes`, `keys_at`."""
        self.columns: block.Block | None = None
        """The block, until its hashes are made."""
        self.hashes: list[int] = []
        """Of a block: hashes of all that the index holds of its messages, in their order."""
        self.key_counts: list[int] = []
        """How many of them each message has; empty: all have as many."""
        self.key_texts: list[str] = []
        """KEYS of each message of a block; empty: none has any."""
        self.flags: list[int] = []
        self.bytes = 0
        """Of all bodies and properties."""
        self.grouped = False
        """All of it or nothing through any crash (groups.py)."""
        self.positions: list[int] = []
        """Where each message is, once it is stored."""

    def keys_at(self, row: int) -> tuple[str, ...]:
        """What the index holds of a message: UNIQ_KEY, then the keys."""
        if self.unique:
            return self.unique[row]
        one = self.texts[row][-1 - block.PREFIX_DIGITS - block.NUMBER_DIGITS : -1].decode()
        return (one, *self.key_texts[row].split()) if self.key_texts else (one,)


def take(run: Run, data: bytes, limits: tuple[int, int, int]) -> bool:
    """Fill the run with all of `data`, a block or items; False where it is not ordinary or not well formed. `limits`: as of `fill`."""
    if block.is_block(data):
        return fill_block(run, block.parse(data, RECORDS_MAX), *limits)
    return fill(run, data, 0, RECORDS_MAX, *limits) == len(data) and len(run.bodies) > 0


def fits(columns: block.Block, body_max: int, content_max: int, text_max: int) -> bool:
    """Whether a block's messages are ordinary and not too large, so that `fill_block` takes them. Nothing is cut: it is a tenth of that."""
    pairs = columns.all_pairs()
    if b"DELAY" in pairs or (b"_" in pairs and any(name in pairs for name in _SPECIAL)):
        return False
    size_max, text_size_max = max(columns.body_sizes), columns.text_size_max()
    if size_max > body_max:
        return False
    if (
        text_size_max > text_max or size_max + text_size_max > content_max
    ):  # perhaps: the longest need not be one message's
        text_sizes = columns.text_sizes()
        if max(text_sizes) > text_max or max(map(add, columns.body_sizes, text_sizes)) > content_max:
            return False
    try:
        for text in columns.tags if columns.all_keys().isascii() else [*columns.tags, *columns.keys()]:
            text.decode()
    except UnicodeDecodeError:
        return False
    return not columns.tags or max(map(len, columns.tags)) <= TAG_BYTES_MAX


def fill_block(run: Run, columns: block.Block, body_max: int, content_max: int, text_max: int) -> bool:
    """Take a block's messages into the run; False if one is not ordinary, or too large. Column by column: nothing is called for a message."""
    if not fits(columns, body_max, content_max, text_max):
        return False
    tags = ["", *[tag.decode() for tag in columns.tags]]
    all_keys = columns.keys()
    if all_keys:
        run.key_texts = b"\x02".join(all_keys).decode().split("\x02")  # it is in none of them
    run.bodies, run.texts, run.flags = columns.bodies(), columns.texts(all_keys), [0] * len(columns)
    run.tags = [tags[number] for number in columns.tag_numbers] if columns.tags else [""] * len(columns)
    run.bytes = sum(columns.body_sizes) + sum(map(len, run.texts))
    run.columns = columns
    return True


def hash_keys(run: Run) -> None:
    """Fill `hashes` and `key_counts` of a block, which is about to enter its topic."""
    columns = run.columns
    if columns is None:
        return
    run.columns = None
    ids = id_hashes(run.topic, columns.prefix, columns.first, len(columns))
    if not run.key_texts:
        run.hashes = ids
        return
    keys = hashes_of_each(run.topic, run.key_texts)
    if keys:  # one each
        run.hashes = [0] * (2 * len(ids))
        run.hashes[::2], run.hashes[1::2] = ids, keys
        return
    for one, text in zip(ids, run.key_texts, strict=True):
        words = text.split()
        run.hashes.append(one)
        run.hashes += [key_hash(run.topic, word) for word in words]
        run.key_counts.append(1 + len(words))


def fill(run: Run, data: bytes, at: int, count: int, body_max: int, content_max: int, text_max: int) -> int:
    """Take up to `count` items from `data[at:]` into the run; the position behind them, or -1 if one is not ordinary or not well formed.

    `body_max`, `text_max`: bytes of a body and of a sender's properties; `content_max`: of both.
    """
    end = len(data)
    unpack, bodies, texts, tags, unique, flags = (
        block.ITEM.unpack_from,
        run.bodies,
        run.texts,
        run.tags,
        run.unique,
        run.flags,
    )
    head = block.ITEM.size
    known: dict[bytes, str] = {b"": ""}
    while at < end and count:
        count -= 1
        if at + head > end:
            return -1
        size, _, _, flag, length = unpack(data, at)
        body_end = at + head + length
        stop = at + size
        if not 0 <= length <= body_max or body_end + 2 > stop or stop > end:
            return -1
        text = data[body_end + 2 : stop]
        if (
            len(text) != data[body_end] << 8 | data[body_end + 1]
            or len(text) > text_max
            or length + len(text) > content_max
        ):
            return -1
        begin = text.rfind(_UNIQ)
        if begin < 0 or (begin and text[begin - 1] != 2) or text[-1] != 2 or b"\0" in text or b"DELAY" in text:
            return -1
        marks = text.count(b"_")
        if marks != 1 and not (marks == 3 and _SHARDING in text):
            for name in _SPECIAL:
                if name in text:
                    return -1
        raw_tag, keys = _value(text, _TAGS), _value(text, _KEYS)
        if raw_tag is None or keys is None or len(raw_tag) > TAG_BYTES_MAX:
            return -1
        try:
            one = text[begin + _UNIQ_SIZE : text.find(2, begin)].decode()
            if raw_tag not in known:
                known[raw_tag] = raw_tag.decode()
            unique.append((one, *keys.decode().split()) if keys else (one,))
        except UnicodeDecodeError:
            return -1
        tags.append(known[raw_tag])
        bodies.append(data[at + head : body_end])
        texts.append(text)
        flags.append(flag)
        run.bytes += size
        at = stop
    return at


def _value(text: bytes, name: bytes) -> bytes | None:
    """Value of a pair, empty without one; None where the name stands inside something else too."""
    at = text.rfind(name)
    if at < 0:
        return b""
    if at and text[at - 1] != 2:
        return None
    return text[at + _WORD_SIZE : text.find(2, at)]


def messages_of(run: Run, kind: int) -> list[Message]:
    """The messages of a run that is not stored, one by one."""
    found = []
    columns = zip(run.bodies, run.texts, run.tags, run.flags, strict=True)
    for row, (body, text, tag, flag) in enumerate(columns):
        keys = run.keys_at(row)
        message = Message(run.topic, body, text + run.properties, tag, keys, run.queue_id, run.born_ms)
        message.kind, message.flag, message.sys_flag = kind, flag, run.sys_flag & ~RUN_FLAG
        message.born_host, message.prepared_offset, message.queue_offset = (
            run.born_host,
            run.prepared_offset,
            run.queue_offset,
        )
        message.sharding_key = props.find(text, props.SHARDING_KEY) if _SHARDING in text else ""
        found.append(message)
    return found
