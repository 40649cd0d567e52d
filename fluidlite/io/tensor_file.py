"""Tensors in safetensors files. Reading checks each number of the header before memory is allocated from it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from fluidlite.base.dtypes import ITEMSIZE, NUMPY
from fluidlite.base.errors import MissingExtraError, SavedModelError, TensorError
from fluidlite.io.snapshot import SavedFile
from fluidlite.tensor.lod import lod_from_offsets
from fluidlite.tensor.tensor_spec import Lod, Spec, dims_problem

Array = np.ndarray[Any, Any]
Stored = tuple[Array, Lod]
"""A tensor's values and its LoD offsets."""

MAX_HEADER_BYTES = 4 << 20
_KEY = "fluidlite"
_VERSION = 1
_DTYPES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "I16": "int16",
    "I32": "int32",
    "I64": "int64",
    "F16": "float16",
    "BF16": "bfloat16",
    "F32": "float32",
    "F64": "float64",
}


def _safetensors() -> Any:
    try:
        import safetensors.numpy
    except ImportError:
        raise MissingExtraError("saved models need safetensors\n  Do: pip install safetensors") from None
    return safetensors


def write_tensors(path: str, values: Mapping[str, Stored]) -> None:
    """Write named values to a new file.

    Raises OSError if the file cannot be written, SavedModelError if names and LoD exceed ``MAX_HEADER_BYTES``.
    """
    safetensors = _safetensors()
    facts: dict[str, Any] = {"version": _VERSION}
    lods = {name: lod for name, (_, lod) in sorted(values.items()) if lod}
    if lods:
        facts["lod"] = lods
    metadata = {_KEY: json.dumps(facts)}  # one entry: the order of several is not deterministic
    arrays = {name: array for name, (array, _) in values.items()}
    try:
        safetensors.numpy.save_file(arrays, path, metadata)
    except safetensors.SafetensorError as exc:
        raise OSError(str(exc)) from None  # the caller adds the file's name
    with open(path, "rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
    if length > MAX_HEADER_BYTES:
        raise SavedModelError(
            f"names and LoD of {len(values)} values take {length:,} bytes; a file holds at most {MAX_HEADER_BYTES:,}"
            "\n  Do: save them in several files"
        )


@dataclass(frozen=True)
class _Record:
    """The dtype and dims of a value, and its byte range in the file's data."""

    dtype: str
    dims: tuple[int, ...]
    begin: int
    end: int


def read_tensors(file: SavedFile, declared: Mapping[str, Spec | None]) -> dict[str, Stored]:
    """Read named values of a file; the others are skipped.

    ``file``: at its beginning.
    ``declaration``: by name, the program's declaration that the value must fit; None: no check.
    Raises SavedModelError if the file is truncated, malformed, of a newer version, or lacks a value.
    """
    header, begin = _header(file)
    metadata = header.pop("__metadata__", None)
    if metadata is not None and not (isinstance(metadata, dict) and all(isinstance(v, str) for v in metadata.values())):
        raise _bad(file, f"its metadata are {metadata!r:.80}")
    lods = _lods(file, (metadata or {}).get(_KEY))
    records = {name: _record(file, name, entry, file.size - begin) for name, entry in header.items()}
    position = 0
    for name, record in sorted(records.items(), key=lambda item: (item[1].begin, item[1].end)):
        if record.begin != position:
            raise _bad(file, f"value {name!r:.60} begins at byte {record.begin}, expected {position}")
        position = record.end
    if position != file.size - begin:
        raise _bad(file, f"its values end at byte {position} of {file.size - begin}")
    specs = {
        name: _spec(file, name, records, declaration, lods.get(name, ())) for name, declaration in declared.items()
    }
    values: dict[str, Stored] = {}
    position = 0
    for name in sorted(specs, key=lambda name: (records[name].begin, records[name].end)):
        spec, record = specs[name], records[name]
        file.skip(record.begin - position)
        values[name] = read_array(file, name, spec), spec.lod
        position = record.end
    file.finish()
    return values


def read_array(file: SavedFile, name: str, spec: Spec) -> Array:
    """Read the next bytes of a file as an array."""
    try:
        array = np.empty(spec.dims, NUMPY[spec.dtype])
    except MemoryError:
        raise SavedModelError(f"{file.path}: there is no memory for the {spec.nbytes:,} bytes of {name!r}") from None
    if array.nbytes:
        file.read_into(array.reshape(-1).view(np.uint8).data)
    return array


def check_fit(file: SavedFile, name: str, declared: Spec | None, saved: Spec) -> None:
    """Raise SavedModelError unless a saved tensor fits the program's declaration."""
    if declared is not None and not declared.fits(saved):
        raise SavedModelError(
            f"variable {name!r} is {declared!r} in the program, but {saved!r} in the file {file.path}"
            "\n  Do: load it with the program that it was saved with"
        )


def names_in(file: SavedFile) -> list[str]:
    header, _ = _header(file)
    return [name for name in header if name != "__metadata__"]


def _bad(file: SavedFile, what: str) -> SavedModelError:
    return SavedModelError(f"{file.path} is truncated or no safetensors file: {what}\n  Do: save the model again")


def _header(file: SavedFile) -> tuple[dict[str, Any], int]:
    """Read the header; return it and the offset of the data."""
    if file.size < 8:
        raise _bad(file, f"it has {file.size} bytes")
    length = int.from_bytes(file.read(8), "little")
    if length > min(file.size - 8, MAX_HEADER_BYTES):
        raise _bad(file, f"its header is to have {length:,} bytes; {MAX_HEADER_BYTES:,} and the file's are the limit")
    content = file.read(length)
    try:
        header = json.loads(content, object_pairs_hook=_object)
    except (ValueError, RecursionError) as exc:
        raise _bad(file, f"its header is malformed ({exc})") from None
    if not isinstance(header, dict):
        raise _bad(file, "its header is no JSON object")
    return header, 8 + length


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a name comes twice")
    return result


def _record(file: SavedFile, name: str, entry: Any, size: int) -> _Record:
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise _bad(file, f"of value {name!r:.60} it says {entry!r:.80}")
    dtype, dims, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or not _whole_numbers(dims) or not _whole_numbers(offsets) or len(offsets) != 2:
        raise _bad(file, f"of value {name!r:.60} it says {entry!r:.80}")
    begin, end = offsets
    if not begin <= end <= size:
        raise _bad(file, f"value {name!r:.60} is to lie from byte {begin} to {end}, of {size}")
    known_dtype = _DTYPES.get(dtype)
    if known_dtype is not None:
        problem = dims_problem(dims, known_dtype)
        if problem:
            raise _bad(file, f"value {name!r:.60} {problem}")
        if prod(dims) * ITEMSIZE[known_dtype] != end - begin:
            raise _bad(file, f"value {name!r:.60} of dims {dims} and dtype {known_dtype} has {end - begin} bytes")
    return _Record(dtype, tuple(dims), begin, end)


def _whole_numbers(items: Any) -> bool:
    return isinstance(items, list) and all(type(item) is int and item >= 0 for item in items)


def _spec(file: SavedFile, name: str, records: Mapping[str, _Record], declared: Spec | None, lod: Lod) -> Spec:
    """The spec of a value in the file, checked against the program's declaration."""
    record = records.get(name)
    if record is None:
        raise SavedModelError(
            f"{file.path} holds no variable {name!r}\n  Do: load it with the program that it was saved with"
        )
    dtype = _DTYPES.get(record.dtype)
    if dtype is None:
        raise SavedModelError(
            f"{file.path}: fluidlite does not know dtype {record.dtype[:20]} of variable {name!r}"
            f"\n  Do: save it as one of {', '.join(NUMPY)}"
        )
    saved = Spec.of(record.dims, dtype)
    check_fit(file, name, declared, saved)
    try:
        lod = lod_from_offsets(lod, record.dims[0] if record.dims else None)
    except TensorError as exc:
        raise SavedModelError(f"{file.path}: the saved LoD of {name!r} is malformed: {exc}") from None
    return saved.with_(lod=lod)


def _lods(file: SavedFile, text: str | None) -> dict[str, Lod]:
    """The LoD of values by name, from the header's metadata."""
    if text is None:
        return {}
    malformed = SavedModelError(f"{file.path}: its metadata are malformed: {text[:80]!r}\n  Do: save the model again")
    try:
        facts = json.loads(text)
    except (ValueError, RecursionError):
        raise malformed from None
    if not isinstance(facts, dict) or type(facts.get("version")) is not int:
        raise malformed
    if facts["version"] > _VERSION:
        raise SavedModelError(
            f"{file.path} is of version {facts['version']}; this fluidlite reads {_VERSION}\n  Do: update fluidlite"
        )
    lods = facts.get("lod", {})
    if not isinstance(lods, dict) or not all(
        isinstance(lod, list) and all(map(_whole_numbers, lod)) for lod in lods.values()
    ):
        raise malformed
    return {name: tuple(tuple(level) for level in lod) for name, lod in lods.items()}
