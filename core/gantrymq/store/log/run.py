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
TOGETHER_MIN: Final = 64
"""Keys whose hashes are made together: for fewer it takes longer than one by one."""

_UNIQ: Final = props.UNIQ_KEY.encode() + props.NAME_END
_KEYS: Final = props.KEYS.encode() + props.NAME_END
_TAGS: Final = props.TAGS.encode() + props.NAME_END
_SHARDING: Final = props.SHARDING_KEY.encode() + props.NAME_END
_SPECIAL: Final = (
    b"POP_CK", b"INNER_", b"TIMER_D", b"TRAN_MSG", b"GANTRY_DISPATCH", b"REPLY_TO_CLIENT", b"_SYS_MSG_PRIORITY_", b"__CRC32#",
    props.RETAIN_IT.encode(),
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
        """Hashes of all that the index holds of the messages, in their order; empty where each is made by itself."""
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
        run.key_texts = _decoded(all_keys)
    run.bodies, run.texts, run.flags = columns.bodies(), columns.texts(all_keys), [0] * len(columns)
    run.tags = [tags[number] for number in columns.tag_numbers] if columns.tags else [""] * len(columns)
    run.bytes = sum(columns.body_sizes) + sum(map(len, run.texts))
    run.columns = columns
    return True


def hash_keys(run: Run) -> None:
    """Fill `hashes` and `key_counts`, where all can be made together, of messages that are about to enter their topic."""
    columns = run.columns
    if columns is None:
        words = [word for keys in run.unique for word in keys]
        if len(words) < TOGETHER_MIN:
            return
        run.hashes = hashes_of_each(run.topic, words)
        counts = list(map(len, run.unique))
        run.key_counts = counts if max(counts) > min(counts) else []
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
    end, begin, unpack, head = len(data), at, block.ITEM.unpack_from, block.ITEM.size
    bodies, texts, flags = run.bodies, run.texts, run.flags
    first = len(texts)
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
        bodies.append(data[at + head : body_end])
        texts.append(text)
        flags.append(flag)
        at = stop
    run.bytes += at - begin
    return at if _tags_and_keys(run, texts[first:] if first else texts) else -1


def _tags_and_keys(run: Run, texts: list[bytes]) -> bool:
    """Tags and keys of these properties into the run; False if something in them asks for more than to be stored, or is not well formed."""
    if not texts:
        return True
    whole = b"".join(texts)
    if not all(texts) or {text[-1] for text in texts} != {2}:
        return False
    if b"\0" in whole or b"DELAY" in whole or any(name in whole for name in _SPECIAL):
        return False
    ids, tags, keys = _values(texts, _UNIQ), _values(texts, _TAGS), _values(texts, _KEYS)
    if not ids or not all(ids) or not tags or not keys or max(map(len, tags)) > TAG_BYTES_MAX:
        return False
    try:
        names = {tag: tag.decode() for tag in set(tags)}
        words = zip(_decoded(ids), _decoded(keys), strict=True)
        run.unique += [(one, *text.split()) if text else (one,) for one, text in words]
    except UnicodeDecodeError:
        return False
    run.tags += [names[tag] for tag in tags]
    return True


def _values(texts: list[bytes], name: bytes) -> list[bytes]:
    """Value of a pair in each, empty without one; none at all where the name stands inside something else too."""
    places = [text.rfind(name) for text in texts]
    # In front of a name at the begin "is" the last byte, which ends a pair, too.
    if {text[at - 1] for text, at in zip(texts, places, strict=True) if at >= 0} - {2}:
        return []
    size = len(name)
    return [text[at + size : text.find(2, at)] if at >= 0 else b"" for text, at in zip(texts, places, strict=True)]


def _decoded(values: list[bytes]) -> list[str]:
    """Values of pairs as texts, in one go: what separates pairs is in none of them. Raises UnicodeDecodeError."""
    return b"\x02".join(values).decode().split("\x02")


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
