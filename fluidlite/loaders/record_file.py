"""Files of records, each a list of tensors, as ``fluid.recordio_writer`` writes them. The format is fluidlite's own.

A file begins with the eight bytes ``FLRECORD`` and a 32-bit version, 1. A record is: a byte, 0 (plain) or 1 (deflate);
the bytes that follow (64 bits) and those that they unpack to (64 bits); their CRC-32 (32 bits); the content. The
unpacked content is the number of fields (32 bits) and for each: bytes for the number of its data type (Fluid's), of
dims and of LoD levels; the dims (64 bits each); for each level the number of offsets and these (64 bits each); the
values. All of it is little-endian. Reading validates every number, and needs memory for one record.
"""

from __future__ import annotations

import os
import secrets
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from stat import S_ISREG
from struct import Struct
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np

from fluidlite.base.dtypes import NUMPY, dtype_name
from fluidlite.base.errors import FluidError, LoaderError
from fluidlite.tensor.lod import lod_from_offsets
from fluidlite.tensor.tensor import Tensor
from fluidlite.tensor.tensor_spec import MAX_RANK, Lod, dims_problem
from fluidlite.tensor.var_type import dtype_number, dtype_of

Value = tuple[np.ndarray[Any, Any], Lod]

MAX_RECORD_BYTES = 1 << 30
_MAX_FIELDS = 4096
_MAX_LEVELS = 64
_BEGIN = b"FLRECORD" + (1).to_bytes(4, "little")
_HEAD = Struct("<BQQI")
_FIELD = Struct("<BBB")


class Compressor:
    """Fluid's ``core.RecordIOWriter.Compressor``. Both compressors are deflate here."""

    NoCompress, Snappy, Gzip = 0, 1, 2


class RecordIOWriter:
    """Writes a file of records; as a context manager, it creates the file if the block ends without an error.

    Parameters
    ----------
    filename : path
    compressor : int
        One of :class:`Compressor`.
    max_num_records : int
        Not used: Fluid's number of records in a chunk.
    """

    Compressor = Compressor

    def __init__(
        self, filename: str | os.PathLike[str], compressor: int = Compressor.Snappy, max_num_records: int = 1000
    ) -> None:
        if compressor not in (Compressor.NoCompress, Compressor.Snappy, Compressor.Gzip):
            raise LoaderError(f"compressor is {compressor!r}; expected one of RecordIOWriter.Compressor's numbers")
        self._path = Path(filename)
        self._compresses = compressor != Compressor.NoCompress
        self._fields: list[Value] = []
        self._temporary = self._path.with_name(f"{self._path.name}.{secrets.token_hex(8)}.tmp")
        try:
            self._stream: BinaryIO | None = open(self._temporary, "xb")  # noqa: SIM115  close() ends it
            self._stream.write(_BEGIN)
        except OSError as exc:
            raise _unwritable(self._path, exc) from None

    def append_tensor(self, tensor: Any) -> None:
        """Add a field of the record: a LoDTensor, or an array."""
        lod: Lod = tuple(tuple(level) for level in tensor.lod()) if isinstance(tensor, Tensor) else ()
        array = tensor.numpy() if isinstance(tensor, Tensor) else np.asarray(tensor)
        dtype = NUMPY[dtype_name(array.dtype)]
        self._fields.append((np.ascontiguousarray(array, dtype).reshape(array.shape), lod))

    def complete_append_tensor(self) -> None:
        """End the record."""
        fields, self._fields = self._fields, []
        self.write(fields)

    def write(self, fields: Sequence[Value]) -> None:
        """Write a record."""
        if self._stream is None:
            raise LoaderError(f"{self._path} was closed")
        raw = b"".join([len(fields).to_bytes(4, "little"), *(_packed(array, lod) for array, lod in fields)])
        if len(raw) > MAX_RECORD_BYTES or len(fields) > _MAX_FIELDS:
            raise LoaderError(f"a record has {len(fields)} fields and {len(raw):,} bytes; 4096 and 2**30 are the most")
        content = zlib.compress(raw, 1) if self._compresses else raw
        try:
            self._stream.write(_HEAD.pack(self._compresses, len(content), len(raw), zlib.crc32(content)))
            self._stream.write(content)
        except OSError as exc:
            self._end(keep=False)  # the file may contain a part of the record
            raise _unwritable(self._path, exc) from None

    def close(self) -> None:
        """Close the file and rename it to its final name; on an error an existing file of that name stays."""
        self._end(keep=True)

    def _end(self, keep: bool) -> None:
        stream, self._stream = self._stream, None
        if stream is None:
            return
        try:
            stream.close()
            if keep:
                os.replace(self._temporary, self._path)
        except OSError as exc:
            if keep:
                raise _unwritable(self._path, exc) from None
        finally:
            with suppress(OSError):
                self._temporary.unlink(missing_ok=True)

    def __enter__(self) -> RecordIOWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._end(keep=kind is None)


def _unwritable(path: Path, exc: OSError) -> LoaderError:
    return LoaderError(f"{path} cannot be written: {exc.strerror or exc}\n  Do: check the path and the disk")


def _packed(array: np.ndarray[Any, Any], lod: Lod) -> bytes:
    parts = [_FIELD.pack(dtype_number(dtype_name(array.dtype)), array.ndim, len(lod))]
    parts.append(np.asarray(array.shape, "<i8").tobytes())
    for level in lod:
        parts += [len(level).to_bytes(8, "little"), np.asarray(level, "<u8").tobytes()]
    return b"".join([*parts, array.tobytes()])


def read_records(path: str | os.PathLike[str]) -> Iterator[list[Value]]:
    """Iterate over the records of a file: arrays with their LoD.

    Raises LoaderError at a record that is truncated, damaged or too large; at the first record, if the file does not
    exist, is no regular file or has another format.
    """
    name = os.fspath(path)
    try:
        with open(os.open(name, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb") as stream:
            state = os.fstat(stream.fileno())
            if not S_ISREG(state.st_mode):
                raise LoaderError(f"{name} is no regular file\n  Do: check the name")
            if stream.read(len(_BEGIN)) != _BEGIN:
                raise LoaderError(
                    f"{name} is no file of records, or of another version\n  Do: write it by fluid.recordio_writer"
                )
            number = 0
            while head := stream.read(_HEAD.size):
                where = f"{name}: record {number}"
                try:
                    fields = _RecordReader(where, _content(stream, head, state.st_size, where)).fields()
                except LoaderError as exc:
                    raise LoaderError(f"{exc}\n  Do: write the file again") from None
                yield fields
                number += 1
    except OSError as exc:
        do = "\n  Do: check the name and its permissions"
        raise LoaderError(f"{name} cannot be read: {exc.strerror or exc}{do}") from None


def _content(stream: BinaryIO, head: bytes, size: int, where: str) -> bytes:
    if len(head) != _HEAD.size:
        raise LoaderError(f"{where} is truncated")
    packed, stored, raw, crc = _HEAD.unpack(head)
    if packed > 1 or max(stored, raw) > MAX_RECORD_BYTES or stored > size:
        raise LoaderError(f"{where} is damaged: it is to have {stored:,} bytes, unpacked {raw:,}")
    content = stream.read(stored)
    if len(content) != stored:
        raise LoaderError(f"{where} is truncated: it has {len(content):,} of {stored:,} bytes")
    if zlib.crc32(content) != crc:
        raise LoaderError(f"{where} is damaged: its checksum is another")
    if packed:
        unpacker = zlib.decompressobj()
        try:
            content = unpacker.decompress(content, raw + 1)
        except zlib.error as exc:
            raise LoaderError(f"{where} is damaged: {exc}") from None
    if len(content) != raw:
        raise LoaderError(f"{where} is damaged: it unpacks to other than {raw:,} bytes")
    return content


class _RecordReader:
    """Reads the fields of an unpacked record."""

    def __init__(self, where: str, content: bytes) -> None:
        self.where, self.content, self.position = where, content, 0

    def _take(self, count: int) -> bytes:
        if count > len(self.content) - self.position:
            raise LoaderError(f"{self.where} is damaged: a field has {count:,} bytes, which are more than the record's")
        self.position += count
        return self.content[self.position - count : self.position]

    def fields(self) -> list[Value]:
        count = int.from_bytes(self._take(4), "little")
        if count > _MAX_FIELDS:
            raise LoaderError(f"{self.where} is damaged: it has {count:,} fields")
        values = [self._field() for _ in range(count)]
        if self.position != len(self.content):
            raise LoaderError(f"{self.where} is damaged: it has bytes after its fields")
        return values

    def _field(self) -> Value:
        number, rank, levels = _FIELD.unpack(self._take(_FIELD.size))
        if rank > MAX_RANK or levels > _MAX_LEVELS:
            raise LoaderError(f"{self.where} is damaged: a field has {rank} dims and {levels} LoD levels")
        dims = np.frombuffer(self._take(8 * rank), "<i8").tolist()
        offsets = [self._level() for _ in range(levels)]
        try:
            dtype = dtype_of(number)
            problem = "has negative dims" if any(dim < 0 for dim in dims) else dims_problem(dims, dtype)
            if problem:
                raise LoaderError(f"a field {problem}")
            lod = lod_from_offsets(offsets, dims[0] if dims else None)
        except FluidError as exc:
            raise LoaderError(f"{self.where} is damaged: {exc}") from None
        count = int(np.prod([*dims, 1], dtype=object))
        array = np.frombuffer(self._take(count * NUMPY[dtype].itemsize), NUMPY[dtype]).reshape(dims)
        return (array.view(np.uint8) != 0 if dtype == "bool" else array), lod  # a byte may be neither 0 nor 1

    def _level(self) -> list[int]:
        count = int.from_bytes(self._take(8), "little")
        return np.frombuffer(self._take(8 * count), "<u8").tolist()  # type: ignore[no-any-return]
