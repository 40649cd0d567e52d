"""Tensors in safetensors files: written atomically, read with every check and never with code."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from fluidlite.base.dtypes import NUMPY
from fluidlite.base.errors import MissingExtraError, SavedModelError
from fluidlite.framework.spec import Lod

Array = np.ndarray[Any, Any]
Stored = tuple[Array, Lod]
"""A value and its LoD offsets."""

SUFFIX = ".safetensors"
_KEY = "fluidlite"
_VERSION = 1
_LONGEST = 180
_DTYPES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "I16": "int16", "I32": "int32", "I64": "int64",
    "F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64",
}  # fmt: skip


def _safetensors() -> Any:
    try:
        import safetensors.numpy
    except ImportError:
        raise MissingExtraError("saved models need safetensors\n  Do: pip install safetensors") from None
    return safetensors


def file_of(folder: Path, name: str) -> Path:
    """The file of one variable: its name, percent-encoded so that it cannot leave the folder."""
    text = quote(name, safe="", errors="surrogatepass")
    if len(text) > _LONGEST:
        digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()
        text = f"{text[:100]}-{digest[:32]}"
    return folder / (text + SUFFIX)


def write_atomically(path: Path, write: Callable[[str], None]) -> None:
    """Let ``write(path)`` fill a temporary file beside ``path``, and put it in place only when it is on disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name[:40]}.", suffix=".tmp", dir=path.parent)
    os.close(handle)
    try:
        write(temporary)
        with open(temporary, "rb+") as stream:
            os.fsync(stream.fileno())
        os.chmod(temporary, 0o666 & ~_umask())  # mkstemp lets only the owner read
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    if os.name == "posix":
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def write_tensors(path: Path, values: Mapping[str, Stored]) -> None:
    """Write named values to one file."""
    safetensors = _safetensors()
    facts: dict[str, Any] = {"version": _VERSION}
    lods = {name: lod for name, (_, lod) in sorted(values.items()) if lod}
    if lods:
        facts["lod"] = lods
    metadata = {_KEY: json.dumps(facts)}  # one entry: the library writes several in any order
    arrays = {name: array for name, (array, _) in values.items()}
    write_atomically(path, lambda temporary: safetensors.numpy.save_file(arrays, temporary, metadata))


def read_tensors(path: Path) -> dict[str, Stored]:
    """Read a file of named values.

    Raises
    ------
    SavedModelError
        If there is no such file, or it is truncated, malformed, of a newer version or has a dtype unknown here.
    """
    safetensors = _safetensors()
    content = read_bytes(path)
    try:
        records = safetensors.deserialize(content)
    except Exception as exc:  # its own error type, and whatever a malformed header leads to
        raise SavedModelError(f"{path} is truncated or no safetensors file: {exc}") from None
    lods = _lods(path, content)
    found: dict[str, Stored] = {}
    for name, record in records:
        dtype = _DTYPES.get(record["dtype"])
        if dtype is None:
            raise SavedModelError(f"{path}: fluidlite does not know dtype {record['dtype']} of variable {name!r}")
        array = np.frombuffer(record["data"], NUMPY[dtype]).reshape(record["shape"])
        found[name] = (array, lods.get(name, ()))
    return found


def read_bytes(path: Path) -> bytes:
    """The content of a file, or SavedModelError."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise SavedModelError(f"there is no file {path}") from None
    except OSError as exc:
        raise SavedModelError(f"{path} cannot be read: {exc.strerror or exc}") from None


def _lods(path: Path, content: bytes) -> dict[str, Lod]:
    """The LoD of values by name, from the header's free texts (the library has checked the header's form)."""
    length = int.from_bytes(content[:8], "little")
    text = (json.loads(content[8 : 8 + length]).get("__metadata__") or {}).get(_KEY)
    if text is None:
        return {}
    try:
        facts = json.loads(text)
        version = int(facts["version"])
        lods = {name: tuple(tuple(map(int, level)) for level in lod) for name, lod in facts.get("lod", {}).items()}
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
        raise SavedModelError(f"{path}: its metadata are malformed: {text[:80]!r}") from None
    if version > _VERSION:
        raise SavedModelError(
            f"{path} is of version {version}; this fluidlite reads {_VERSION}\n  Do: update fluidlite"
        )
    return lods
