"""Tensors in the binary files of Paddle 1.x. Each number in a file is checked before memory is allocated from it.

One tensor is: a 32-bit version, 0; the number of LoD levels (64 bits) and, for each, its bytes (64 bits) and offsets
(64 bits each); a 32-bit version, 0; the length (32 bits) of a ``TensorDesc`` message, and it; the values. All of it
is little-endian. A file of several tensors concatenates them in the order of their names, which it does not contain.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fluidlite.base.dtypes import dtype_name
from fluidlite.base.errors import FluidError, SavedModelError, TensorError
from fluidlite.io.snapshot import SavedFile
from fluidlite.io.tensor_file import Stored, check_fit, read_array
from fluidlite.program.protobuf.messages import message_classes, parse
from fluidlite.tensor.lod import lod_from_offsets
from fluidlite.tensor.tensor_spec import MAX_RANK, Lod, Spec, dims_problem
from fluidlite.tensor.var_type import dtype_number, dtype_of

_MAX_DESC_BYTES = 16 + 16 * MAX_RANK
_MAX_LOD_LEVELS = 64


def tensor_bytes(array: np.ndarray[Any, Any], lod: Lod) -> bytes:
    """A tensor in Paddle's format."""
    number = dtype_number(dtype_name(array.dtype))
    desc = message_classes()["TensorDesc"](data_type=number, dims=array.shape).SerializeToString()
    parts = [bytes(4), len(lod).to_bytes(8, "little")]
    for level in lod:
        parts += [(8 * len(level)).to_bytes(8, "little"), np.asarray(level, "<u8").tobytes()]
    return b"".join([*parts, bytes(4), len(desc).to_bytes(4, "little"), desc, array.tobytes()])


def write_lod_tensors(path: str, values: Mapping[str, Stored]) -> None:
    """Write values to a new file, in the order of their names."""
    with open(path, "wb") as stream:
        for name in sorted(values):
            stream.write(tensor_bytes(*values[name]))


def is_lod_tensors(begin: bytes) -> bool:
    """Whether a file with these first bytes is Paddle's; safetensors begin with the length of a header, never 0."""
    return begin[:4] == bytes(4)


def read_lod_tensors(file: SavedFile, declared: Mapping[str, Spec | None]) -> dict[str, Stored]:
    """Read the tensors of a file.

    ``file``: at its beginning.
    ``declared``: the program's declarations by name, of all tensors in the file.
    Raises SavedModelError if the file is truncated, malformed, of another version, or does not hold exactly these
    tensors.
    Raises MissingExtraError if the package protobuf is not installed.
    """
    message_classes()  # reports a missing package before any error of the file
    values: dict[str, Stored] = {}
    for name in sorted(declared):
        values[name] = _TensorReader(file, name).read(declared[name])
    if file.left:
        raise SavedModelError(
            f"{file.path} has {file.left:,} bytes after {'its tensor' if len(declared) == 1 else 'all tensors'}"
            f" ({len(declared)} expected)\n  Do: load it with the program, and by the function, that it was saved with"
        )
    file.finish()
    return values


class _TensorReader:
    """Reads one tensor of a file."""

    def __init__(self, file: SavedFile, name: str) -> None:
        self.file, self.name = file, name

    def _bad(self, what: str) -> SavedModelError:
        return SavedModelError(
            f"{self.file.path} is truncated, or no file of Paddle's, at variable {self.name!r:.80}: {what}"
            "\n  Do: save the model again; the variables of one file have to be those that it was saved with"
        )

    def _take(self, count: int, what: str) -> bytearray:
        if count > self.file.left:
            raise self._bad(f"{what} has {count:,} bytes, and the file {self.file.left:,} more")
        return self.file.read(count)

    def _number(self, nbytes: int, what: str) -> int:
        return int.from_bytes(self._take(nbytes, what), "little")

    def _version(self, what: str) -> None:
        version = self._number(4, f"the version of the {what}")
        if version:
            raise self._bad(f"its {what} is of version {version}; this fluidlite reads 0")

    def read(self, declared: Spec | None) -> Stored:
        self._version("LoD")
        levels = self._number(8, "the number of LoD levels")
        if levels > _MAX_LOD_LEVELS:
            raise self._bad(f"it has {levels:,} LoD levels; at most {_MAX_LOD_LEVELS} are possible")
        offsets = [self._level() for _ in range(levels)]
        self._version("tensor")
        length = self._number(4, "the length of the TensorDesc")
        if length > _MAX_DESC_BYTES:
            raise self._bad(f"its TensorDesc is to have {length:,} bytes; at most {_MAX_DESC_BYTES} are possible")
        spec = self._spec(bytes(self._take(length, "the TensorDesc")))
        check_fit(self.file, self.name, declared, spec)
        try:
            lod = lod_from_offsets(offsets, spec.dims[0] if spec.dims else None)
        except TensorError as exc:
            raise self._bad(f"its LoD is malformed: {exc}") from None
        if spec.nbytes > self.file.left:
            raise self._bad(f"{spec!r} takes {spec.nbytes:,} bytes, and the file has {self.file.left:,} more")
        array = read_array(self.file, self.name, spec)
        if spec.dtype == "bool":
            array = array.view(np.uint8) != 0  # a byte may be neither 0 nor 1
        return array, lod

    def _level(self) -> list[int]:
        nbytes = self._number(8, "the length of a LoD level")
        if nbytes % 8:
            raise self._bad(f"a LoD level has {nbytes:,} bytes; expected 8 a number")
        return np.frombuffer(self._take(nbytes, "a LoD level"), "<u8").tolist()  # type: ignore[no-any-return]

    def _spec(self, content: bytes) -> Spec:
        try:
            desc = parse("TensorDesc", content)
        except SavedModelError as exc:
            raise self._bad(str(exc)) from None
        if not desc.HasField("data_type"):
            raise self._bad("it has no data type")
        dims = list(desc.dims)
        try:
            dtype = dtype_of(desc.data_type)
        except FluidError as exc:
            raise self._bad(str(exc)) from None
        if any(dim < 0 for dim in dims):
            raise self._bad(f"it has dims {dims!r:.80}")
        problem = dims_problem(dims, dtype)
        if problem:
            raise self._bad(f"it {problem}")
        return Spec.of(dims, dtype)
