"""A block: ordinary messages of one queue in columns, as one request brings them (docs/formats/blocks.md).

All integers big-endian:

      0  magic 4 | messages 4 | number of the first id 8 | first 20 digits of all ids 20
     36  bytes of the tags 4 | of the keys 4 | of the properties 4 | of the bodies 4
     52  length of each body 4 | of its properties 2 | of its keys 2, if there are keys | number of its tag 2, if there are tags (0: none)
         tags, U+0002 behind each | keys | properties | bodies

Each column stands whole before the next one begins, so that neither side touches a message by itself. Properties are pairs, but tag, keys and
id (UNIQ_KEY: the 20 digits and 12 of the message's number, one more than the one before) are columns of their own: whoever stores the block writes those
pairs, so that what it stores beside them, and what a reader finds in the properties, cannot differ.
"""

from __future__ import annotations

import sys
from array import array
from itertools import accumulate, pairwise
from operator import add
from struct import Struct
from typing import TYPE_CHECKING, Final

from gantrymq.model import properties as props
from gantrymq.model.errors import ErrorCode, GantryError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MAGIC: Final = b"GBLK"
HEAD: Final = Struct(">4sIQ20sIIII")
PREFIX_DIGITS: Final = 20
NUMBER_DIGITS: Final = 12
NUMBERS_MAX: Final = 16**NUMBER_DIGITS
BODY_LENGTH: Final = "I"
SHORT_LENGTH: Final = "H"
"""Type codes of the columns of lengths and tag numbers."""

ITEM: Final = Struct(">iiiii")
"""Of SEND_BATCH_MESSAGE: total size, magic, body CRC (both ignored, as RocketMQ does), flag, body length; body, 2 bytes of length and properties follow."""
_SHORT: Final = Struct(">H")

_STEP: Final = 4096
_ENDS: Final = [b"%03X\x02" % number for number in range(_STEP)]
_NAME_OF_ID: Final = props.UNIQ_KEY.encode() + props.NAME_END
_NAME_OF_KEYS: Final = props.KEYS.encode() + props.NAME_END
_NAME_OF_TAG: Final = props.TAGS.encode() + props.NAME_END
_OWN: Final = (_NAME_OF_ID, _NAME_OF_KEYS, _NAME_OF_TAG)
BESIDE_KEYS: Final = len(_NAME_OF_KEYS) + 1
BESIDE_TAG: Final = len(_NAME_OF_TAG) + 1
ID_PAIR_BYTES: Final = len(_NAME_OF_ID) + PREFIX_DIGITS + NUMBER_DIGITS + 1
"""Bytes that a message's properties have for its id, and beside its keys and its tag, if it has such."""


class Block:
    """A block that is well formed. Columns are cut into values when somebody asks for them: to look at a block is a tenth of that. `tags`: the different
    ones, U+0002 not among them; `tag_numbers` and `key_sizes` are empty where no message has such."""

    __slots__ = (
        "_bodies_at",
        "_data",
        "_keys_at",
        "_pairs_at",
        "body_sizes",
        "first",
        "key_sizes",
        "pair_sizes",
        "prefix",
        "tag_numbers",
        "tags",
    )

    def __init__(self, data: bytes, prefix: bytes, first: int) -> None:
        self._data = data
        self._keys_at = self._pairs_at = self._bodies_at = len(data)
        self.prefix = prefix
        self.first = first
        self.body_sizes: Sequence[int] = ()
        self.pair_sizes: Sequence[int] = ()
        self.key_sizes: Sequence[int] = ()
        self.tags: list[bytes] = []
        self.tag_numbers: Sequence[int] = ()

    def __len__(self) -> int:
        return len(self.body_sizes)

    def bodies(self) -> list[bytes]:
        """Of each message."""
        return _cut(self._data, self.body_sizes, self._bodies_at)

    def pairs(self) -> list[bytes]:
        """Properties of each, but tag, keys and id."""
        return _cut(self._data, self.pair_sizes, self._pairs_at)

    def all_pairs(self) -> bytes:
        """`pairs`, one behind the other."""
        return self._data[self._pairs_at : self._bodies_at]

    def keys(self) -> list[bytes]:
        """Of each; empty where no message has any."""
        return _cut(self._data, self.key_sizes, self._keys_at)

    def all_keys(self) -> bytes:
        """`keys`, one behind the other."""
        return self._data[self._keys_at : self._pairs_at]

    def texts(self, all_keys: list[bytes]) -> list[bytes]:
        """All properties of each message: its pairs, tag, keys, id. `all_keys`: `keys`, which whoever asks has at hand."""
        columns: list[Sequence[bytes]] = [self.pairs()]
        if self.tags:
            pairs = [b"", *[_NAME_OF_TAG + tag + b"\x02" for tag in self.tags]]
            columns.append([pairs[number] for number in self.tag_numbers])
        if all_keys:
            columns.append([_NAME_OF_KEYS + keys + b"\x02" if keys else b"" for keys in all_keys])
        columns.append(id_pairs(self.prefix, self.first, len(self)))
        return list(map(b"".join, zip(*columns, strict=True)))

    def text_size_max(self) -> int:
        """Bytes that none of `texts` exceeds: the longest of each column together."""
        size = ID_PAIR_BYTES + max(self.pair_sizes)
        if self.tags:
            size += BESIDE_TAG + max(map(len, self.tags))
        if self.key_sizes:
            size += BESIDE_KEYS + max(self.key_sizes)
        return size

    def text_sizes(self) -> list[int]:
        """Bytes of each of `texts`."""
        sizes = [size + ID_PAIR_BYTES for size in self.pair_sizes]
        if self.tags:
            tags = [0, *[BESIDE_TAG + len(tag) for tag in self.tags]]
            sizes = list(map(add, sizes, [tags[number] for number in self.tag_numbers]))
        if self.key_sizes:
            sizes = list(map(add, sizes, [BESIDE_KEYS + size if size else 0 for size in self.key_sizes]))
        return sizes

    def messages(self) -> Iterator[tuple[bytes, bytes]]:
        """Body and properties of each."""
        return zip(self.bodies(), self.texts(self.keys()), strict=True)


def as_items(data: bytes) -> bytes:
    """The messages of a block as the body of SEND_BATCH_MESSAGE, for brokers that know no blocks."""
    parts: list[bytes] = []
    for body, text in parse(data, len(data)).messages():
        size = ITEM.size + len(body) + _SHORT.size + len(text)
        parts += (ITEM.pack(size, 0, 0, 0, len(body)), body, _SHORT.pack(len(text)), text)
    return b"".join(parts)


def id_pairs(prefix: bytes, first: int, count: int) -> list[bytes]:
    """`UNIQ_KEY` pairs of so many messages."""
    found: list[bytes] = []
    while count > 0:
        high, low = divmod(first, _STEP)
        ends = _ENDS[low : low + count]
        head = b"%b%b%09X" % (_NAME_OF_ID, prefix, high)
        found += [head + end for end in ends]
        first += len(ends)
        count -= len(ends)
    return found


def is_block(data: bytes) -> bool:
    """Whether a request's body is a block; the items of a batch begin with their size, which is smaller."""
    return data[:4] == MAGIC


def _bad(text: str) -> GantryError:
    return GantryError(ErrorCode.MESSAGE_ILLEGAL, f"block: {text}")


def _numbers(kind: str, data: bytes) -> list[int]:
    column = array(kind, data)
    if sys.byteorder == "little":
        column.byteswap()
    return column.tolist()


def _cut(data: bytes, lengths: Sequence[int], at: int) -> list[bytes]:
    return [data[begin:end] for begin, end in pairwise(accumulate(lengths, initial=at))]


def parse(data: bytes, count_max: int) -> Block:
    """Take a block apart. Raises MESSAGE_ILLEGAL for one that is not well formed; what its texts say is not looked at, but that no pair runs into the
    next one or stands for a column."""
    if len(data) < HEAD.size:
        raise _bad(f"{len(data)} bytes, its head alone has {HEAD.size}")
    magic, count, first, prefix, tags_size, keys_size, pairs_size, bodies_size = HEAD.unpack_from(data)
    if magic != MAGIC or not prefix.isalnum() or first + count > NUMBERS_MAX:
        raise _bad("its head is none")
    if not 0 < count <= count_max:
        raise _bad(f"{count} messages; 1 to {count_max} are allowed")
    shorts = 1 + (keys_size > 0) + (tags_size > 0)
    texts_at = HEAD.size + count * (4 + 2 * shorts)
    if texts_at + tags_size + keys_size + pairs_size + bodies_size != len(data):
        raise _bad(f"{len(data)} bytes are not those that its head counts")
    block = Block(data, prefix, first)
    at = HEAD.size + 4 * count
    lengths = _numbers(BODY_LENGTH, data[HEAD.size : at])
    columns = [_numbers(SHORT_LENGTH, data[begin : begin + 2 * count]) for begin in range(at, texts_at, 2 * count)]
    at = texts_at
    if tags_size:
        text = data[at : at + tags_size]
        at += tags_size
        if text[-1] != 2:
            raise _bad("its tags do not end")
        block.tags = text[:-1].split(b"\x02")
        block.tag_numbers = columns.pop()
        if max(block.tag_numbers) > len(block.tags) or not all(block.tags) or b"\x01" in text or b"\0" in text:
            raise _bad("its tags are none")
    block._keys_at, block._pairs_at, block._bodies_at = at, at + keys_size, at + keys_size + pairs_size
    if keys_size:
        block.key_sizes = columns.pop()
        text = block.all_keys()
        if sum(block.key_sizes) != keys_size or b"\x01" in text or b"\x02" in text or b"\0" in text:
            raise _bad("its keys are none")
    block.body_sizes, block.pair_sizes = lengths, columns.pop()
    if sum(block.pair_sizes) != pairs_size or sum(lengths) != bodies_size:
        raise _bad("lengths that are not those of its columns")
    _check_pairs(block.all_pairs(), block.pair_sizes)
    return block


def _check_pairs(text: bytes, sizes: Sequence[int]) -> None:
    if not text:
        return
    if b"\0" in text or text.startswith(_OWN) or any(b"\x02" + name in text for name in _OWN):
        raise _bad("properties that name a tag, keys or an id, which have columns, or hold U+0000")
    # Of a message without pairs the byte before it is looked at: the end of another one's, or of the last.
    if {text[end - 1] for end in accumulate(sizes)} != {2}:
        raise _bad("properties that do not end with U+0002")


def encode(
    prefix: bytes,
    first: int,
    bodies: Sequence[bytes],
    pairs: Sequence[bytes],
    tags: Sequence[bytes],
    keys: Sequence[bytes],
) -> bytes:
    """The block of these messages; `tags`, `keys`: one of each, empty for none."""
    known = {tag: number for number, tag in enumerate(dict.fromkeys(tag for tag in tags if tag), 1)}
    known[b""] = 0
    table = b"".join([tag + b"\x02" for tag in known if tag])
    shorts = [list(map(len, pairs))]
    if any(keys):
        shorts.append(list(map(len, keys)))
    if table:
        shorts.append([known[tag] for tag in tags])
    texts = [table, b"".join(keys), b"".join(pairs), b"".join(bodies)]
    return b"".join(
        [
            HEAD.pack(MAGIC, len(bodies), first, prefix, *map(len, texts)),
            _packed(BODY_LENGTH, list(map(len, bodies))),
            *[_packed(SHORT_LENGTH, column) for column in shorts],
            *texts,
        ]
    )


def _packed(kind: str, values: Sequence[int]) -> bytes:
    return Struct(f">{len(values)}{kind}").pack(*values)
