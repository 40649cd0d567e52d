"""Reductions between processes of one machine through shared memory, by the computing threads themselves.

Each member posts in its header the operation that it has reached, and the offsets of its arrays. When all have arrived,
each reduces its part of the elements, in the order of ranks, and writes the result to every member's memory: for ``n``
bytes a member reads and writes ``n`` bytes each, whatever the number of members. All members get the same bits. Small
arrays are stored in the headers, and each member reduces them itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from fluidlite.base.errors import CollectiveError
from fluidlite.distributed.groups import REDUCTIONS, Array
from fluidlite.distributed.shared_memory import HEADER_BYTES, MappedFile, SharedHeap

# Words of a header: the operation that its process has posted, the one whose part it has completed, then a slot for
# even and one for odd operations: the operation's signature, its text, and its values or their offsets.
_POSTED, _DONE, _SLOTS, _SLOT_WORDS = 8, 16, 64, 2048
_SIGNATURE, _TEXT, _BODY = 0, 1, 33
_TEXT_BYTES = 8 * (_BODY - _TEXT)
SMALL_BYTES = 8 * (_SLOT_WORDS - _BODY)
"""Up to this size in bytes, values are stored in the header."""
MAX_PIECES = _SLOT_WORDS - _BODY
CHUNK_BYTES = 1 << 16
"""Bytes that are reduced at a time: they are still in the core's cache when they are written to the other members."""
_GRAIN = 64
"""The parts of members are multiples of so many elements: two members seldom write to one cache line."""

assert 8 * (_SLOTS + 2 * _SLOT_WORDS) <= HEADER_BYTES


class _Flags:
    """Whether all members have reached an operation, with the interface of an MPI request."""

    def __init__(self, headers: Sequence[memoryview], word: int, number: int) -> None:
        self._headers, self._word, self._number = headers, word, number

    def Test(self) -> bool:
        word, number = self._word, self._number
        return all(header[word] >= number for header in self._headers)


class SharedReductions:
    """The shared-memory reductions of one member.

    ``maps``: every member's file; this member's is a SharedHeap.
    ``wait``: ``wait(request, what)`` returns when ``request.Test()`` is true, and raises if it never will be.
    """

    def __init__(self, rank: int, maps: Sequence[MappedFile], wait: Callable[[Any, str], None]) -> None:
        self.rank, self.maps = rank, list(maps)
        heap = maps[rank]
        assert isinstance(heap, SharedHeap)
        self.heap: SharedHeap = heap
        self._headers = [each.words for each in maps]
        self._other_headers = [each.words for i, each in enumerate(maps) if i != rank]
        self._wait = wait
        self._number = 0
        self._staging: Array = np.empty(0, np.uint8)
        self._signatures: dict[tuple[str, tuple[int, ...]], int] = {}

    def reduce(self, arrays: Sequence[Array], reduction: str, what: str) -> None:
        """Replace contiguous arrays of one dtype by the reduction over all members.

        Raises CollectiveError if the members do different operations, or one does not arrive.
        """
        nbytes = sum(array.nbytes for array in arrays)
        flat = [array.reshape(-1) for array in arrays if array.size]
        if nbytes <= SMALL_BYTES:
            self._small(flat, nbytes, reduction, what)
            return
        offsets = [self.heap.offset_of(array) for array in flat]
        if len(flat) > MAX_PIECES or any(offset is None for offset in offsets):
            if self._staging.nbytes < nbytes:
                self._staging = self.heap.allocate(nbytes)
            staged = self._staging[:nbytes].view(flat[0].dtype)
            np.concatenate(flat, out=staged)
            pieces = [staged]
            if len(flat) <= MAX_PIECES:  # the pieces of members whose arrays all lie in their heaps
                pieces = np.split(staged, np.cumsum([array.size for array in flat[:-1]]))
            self._large(pieces, reduction, what)
            _scatter(staged, flat)
            return
        self._large(flat, reduction, what)

    def meet(self, what: str) -> None:
        self._small([], 0, "sum", what)

    def _slot(self) -> int:
        return _SLOTS + (self._number & 1) * _SLOT_WORDS

    def _begin(self, what: str, sizes: tuple[int, ...] = ()) -> memoryview:
        """Write the signature of the next operation into the own header; return the body of its slot.

        ``sizes``: elements of each piece, which all members read by number.
        """
        self._number += 1
        header, slot = self._headers[self.rank], self._slot()
        signature = self._signatures.get((what, sizes))
        if signature is None:
            if len(self._signatures) > 4096:
                self._signatures.clear()
            digest = hashlib.sha256(repr((what, sizes)).encode()).digest()
            signature = self._signatures[what, sizes] = int.from_bytes(digest[:7], "little")
        if header[slot + _SIGNATURE] != signature:
            header[slot + _SIGNATURE] = signature
            pieces = f" in {len(sizes)} pieces" if sizes else ""
            text = f"{what}{pieces}".encode()[: _TEXT_BYTES - 1]
            header[slot + _TEXT : slot + _BODY].cast("B")[: len(text) + 1] = text + b"\0"
        return header[slot + _BODY : slot + _SLOT_WORDS]

    def _announce(self, word: int, what: str) -> None:
        """Announce the operation that this member has reached, and wait for all others."""
        number = self._headers[self.rank][word] = self._number
        flags = _Flags(self._other_headers, word, number)
        if not flags.Test():
            self._wait(flags, what)

    def _meet(self, what: str) -> None:
        """Announce that the slot is written, wait for the others, and check that their signatures are equal."""
        self._announce(_POSTED, what)
        at = self._slot() + _SIGNATURE
        own = self._headers[self.rank][at]
        for rank, header in enumerate(self._headers):
            if header[at] != own:
                text = bytes(header[at + _TEXT : at + _BODY].cast("B")).partition(b"\0")[0].decode(errors="replace")
                raise CollectiveError(
                    f"the members do different operations: member {self.rank} {what}, member {rank} {text}"
                    "\n  Do: see that all processes run the same program, with equal dims and dtypes"
                )

    def _small(self, flat: Sequence[Array], nbytes: int, reduction: str, what: str) -> None:
        body = self._begin(what).cast("B")
        offset = 0
        for array in flat:
            body[offset : offset + array.nbytes] = array.view(np.uint8).data
            offset += array.nbytes
        self._meet(what)
        if not flat:
            return
        at = 8 * (self._slot() + _BODY)
        dtype, function = flat[0].dtype, REDUCTIONS[reduction]
        total = np.array(self.maps[0].bytes[at : at + nbytes].view(dtype))
        for other in self.maps[1:]:
            function(total, other.bytes[at : at + nbytes].view(dtype), out=total)
        _scatter(total, flat)

    def _large(self, flat: Sequence[Array], reduction: str, what: str) -> None:
        sizes = tuple(array.size for array in flat)
        body = self._begin(what, sizes)
        for i, array in enumerate(flat):
            body[i] = self.heap.offset_of(array) or 0
        self._meet(what)
        function, at = REDUCTIONS[reduction], self._slot() + _BODY
        for i, first, last in _partition(sizes, self.rank, len(self.maps)):
            dtype, size = flat[i].dtype, flat[i].itemsize
            pieces = []
            for mapping in self.maps:
                begin = mapping.words[at + i]
                pieces.append(mapping.bytes[begin + first * size : begin + last * size].view(dtype))
            step = CHUNK_BYTES // size
            for begin in range(0, last - first, step):
                total, *operands = [piece[begin : begin + step] for piece in pieces]
                for other in operands:
                    function(total, other, out=total)
                for other in operands:
                    other[...] = total
        self._announce(_DONE, what)


def _scatter(numbers: Array, arrays: Sequence[Array]) -> None:
    """Fill arrays with consecutive parts of ``numbers``."""
    begin = 0
    for array in arrays:
        array[...] = numbers[begin : begin + array.size]
        begin += array.size


def _partition(sizes: Sequence[int], rank: int, ranks: int) -> Iterator[tuple[int, int, int]]:
    """A member's part of all elements, in multiples of ``_GRAIN``: index of the array, first and last element."""
    total = sum(sizes)
    begin, end = (total if k == ranks else total * k // ranks // _GRAIN * _GRAIN for k in (rank, rank + 1))
    before = 0
    for i, size in enumerate(sizes):
        first, last = max(begin - before, 0), min(end - before, size)
        if first < last:
            yield i, first, last
        before += size
