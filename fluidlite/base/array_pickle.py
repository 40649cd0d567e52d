"""Read pickles of arrays, numbers and texts without Python's unpickler: nothing in them is imported or called.

Old data sets and parameters are stored as pickles. This module interprets the opcodes that lists, tuples, mappings,
numbers, texts, bytes and NumPy arrays need; everything else in a pickle is refused by its name.
"""

from __future__ import annotations

import pickletools
from math import prod
from typing import Any

import numpy as np

from fluidlite.base.errors import SavedModelError

_ALLOWED = {
    "numpy.core.multiarray _reconstruct": "new array",
    "numpy._core.multiarray _reconstruct": "new array",
    "numpy.core.multiarray scalar": "scalar",
    "numpy._core.multiarray scalar": "scalar",
    "numpy.core.numeric _frombuffer": "array of bytes",
    "numpy._core.numeric _frombuffer": "array of bytes",
    "numpy ndarray": "class",
    "numpy dtype": "dtype",
    "_codecs encode": "encode",
    "collections OrderedDict": "mapping",
    "__builtin__ bytes": "bytes",
    "builtins bytes": "bytes",
    "__builtin__ bytearray": "bytes",
    "builtins bytearray": "bytes",
}
"""The names that a pickle may refer to, and the meaning of each."""
_KINDS = "biufSU"
_MAX_DEPTH = 64
_MARK = object()
_VALUES = frozenset(
    {
        "INT",
        "BININT",
        "BININT1",
        "BININT2",
        "LONG",
        "LONG1",
        "LONG4",
        "FLOAT",
        "BINFLOAT",
        "UNICODE",
        "SHORT_BINUNICODE",
        "BINUNICODE",
        "BINUNICODE8",
        "BINBYTES",
        "SHORT_BINBYTES",
        "BINBYTES8",
        "BYTEARRAY8",
        "STRING",
        "BINSTRING",
        "SHORT_BINSTRING",
    }
)


class _Budget:
    """The number of values and bytes that a pickle may still use: it can refer to one value many times."""

    def __init__(self, values: int, nbytes: int) -> None:
        self.values, self.nbytes = values, nbytes

    def take(self, values: int, nbytes: int = 0) -> None:
        """Subtract from the budget; raise SavedModelError if it is exceeded."""
        self.values -= values
        self.nbytes -= nbytes
        if self.values < 0 or self.nbytes < 0:
            raise SavedModelError("it holds more values than such a file has")


class _Named:
    """A name in a pickle. The object of that name is never called."""

    def __init__(self, meaning: str) -> None:
        self.meaning = meaning


class _Dtype:
    """A NumPy dtype under construction."""

    def __init__(self, code: str) -> None:
        self.code, self.order = code, "="

    def dtype(self) -> np.dtype[Any]:
        result = np.dtype(self.code)
        if result.kind not in _KINDS:
            raise SavedModelError(f"it holds an array of {self.code!r:.20}; expected numbers or texts")
        return (
            result.newbyteorder(">") if self.order == ">" else result.newbyteorder("<") if self.order == "<" else result
        )


class _Array:
    """A NumPy array under construction."""

    def __init__(self) -> None:
        self.value: Any = None


def load_arrays(content: bytes, most: int = 10_000_000) -> Any:
    """Read a pickle of arrays and plain values; texts of Python 2 come as ``str``, byte by byte (latin-1).

    ``content``: the whole pickle, of any protocol.
    ``most``: the maximum number of opcodes and values.
    Raises SavedModelError: it is truncated, malformed, too large, or holds anything else.
    """
    try:
        budget = _Budget(most, 8 * len(content) + (1 << 20))
        return _finished(_run(content, budget), 0, budget)
    except SavedModelError:
        raise
    except RecursionError:
        raise SavedModelError("its values lie in each other too deep") from None
    except Exception as exc:  # invalid opcodes can raise anything
        raise SavedModelError(f"it is truncated or no pickle ({type(exc).__name__}: {exc!s:.80})") from None


def _run(content: bytes, budget: _Budget) -> Any:
    stack: list[Any] = []
    memo: dict[Any, Any] = {}
    for opcode, argument, _ in pickletools.genops(content):
        budget.take(1)
        name = opcode.name
        if name in _VALUES:
            stack.append(argument)
        elif name in ("PROTO", "FRAME"):
            continue
        elif name == "STOP":
            (result,) = stack
            return result
        elif name == "MEMOIZE":
            memo[len(memo)] = stack[-1]
        elif name in ("PUT", "BINPUT", "LONG_BINPUT"):
            memo[argument] = stack[-1]
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            stack.append(memo[argument])
        elif name in ("GLOBAL", "STACK_GLOBAL"):
            if name == "STACK_GLOBAL":
                what, module = stack.pop(), stack.pop()
                argument = f"{module} {what}"
            if argument not in _ALLOWED:
                raise SavedModelError(f"it names {argument!r:.80}, which is no part of arrays; nothing of it was run")
            stack.append(_Named(_ALLOWED[argument]))
        elif name in ("REDUCE", "NEWOBJ"):
            arguments, called = stack.pop(), stack.pop()
            budget.take(0, _copied_bytes(arguments))
            stack.append(_call(called, arguments))
        elif name == "BUILD":
            state = stack.pop()
            budget.take(0, _copied_bytes(state))
            _build(stack[-1], state)
        elif name in ("POP", "POP_MARK"):
            stack.pop() if name == "POP" else _to_mark(stack)
        elif name == "DUP":
            stack.append(stack[-1])
        else:
            _collect(name, stack)
    raise SavedModelError("it is truncated")


_EMPTY: dict[str, type] = {"EMPTY_LIST": list, "EMPTY_TUPLE": tuple, "EMPTY_DICT": dict}
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "MARK": _MARK}


def _copied_bytes(arguments: Any) -> int:
    """How many bytes a call copies, at most: those of its arguments, however often the file refers to them."""
    return sum(len(item) for item in _expect(arguments, tuple) if isinstance(item, (str, bytes, bytearray)))


def _to_mark(stack: list[Any]) -> list[Any]:
    at = len(stack) - 1
    while stack[at] is not _MARK:
        at -= 1
        if at < 0:
            raise SavedModelError("it is malformed: a mark is missing")
    items = stack[at + 1 :]
    del stack[at:]
    return items


def _collect(name: str, stack: list[Any]) -> None:
    """Interpret the opcodes of constants and of containers."""
    if name in _CONSTANTS:
        stack.append(_CONSTANTS[name])
    elif name in _EMPTY:
        stack.append(_EMPTY[name]())
    elif name in ("TUPLE1", "TUPLE2", "TUPLE3"):
        size = int(name[-1])
        items = tuple(stack[-size:])
        if len(items) != size:
            raise SavedModelError("it is malformed")
        stack[-size:] = [items]
    elif name in ("TUPLE", "LIST", "DICT"):
        items_of = _to_mark(stack)
        stack.append(tuple(items_of) if name == "TUPLE" else items_of if name == "LIST" else _pairs(items_of))
    elif name in ("APPEND", "APPENDS"):
        added = [stack.pop()] if name == "APPEND" else _to_mark(stack)
        _expect(stack[-1], list).extend(added)
    elif name in ("SETITEM", "SETITEMS"):
        value = _to_mark(stack) if name == "SETITEMS" else [stack.pop(-2), stack.pop()]
        _expect(stack[-1], dict).update(_pairs(value))
    else:
        raise SavedModelError(f"it uses the opcode {name}, which arrays do not need")


def _expect(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise SavedModelError(f"it is malformed: {type(value).__name__} where a {kind.__name__} is expected")
    return value


def _pairs(items: list[Any]) -> dict[Any, Any]:
    if len(items) % 2 or not all(isinstance(key, (str, bytes, int, float)) for key in items[::2]):
        raise SavedModelError("it holds a mapping whose keys are no texts or numbers")
    return dict(zip(items[::2], items[1::2], strict=True))


def _call(called: Any, arguments: Any) -> Any:
    """Return the value of a call in a pickle, without calling anything."""
    meaning = called.meaning if isinstance(called, _Named) else None
    arguments = _expect(arguments, tuple)
    if meaning == "new array":
        return _Array()
    if meaning == "dtype":
        return _Dtype(_text(arguments[0]))
    if meaning == "encode":
        return _text(arguments[0]).encode("latin-1")
    if meaning == "scalar":
        numbers = _numbers(arguments[1], arguments[0], (), False)
        return numbers[()]
    if meaning == "array of bytes":
        data, dtype, dims, order = arguments
        array = _Array()
        array.value = _numbers(data, dtype, dims, order == "F")
        return array
    if meaning == "mapping":
        pairs = [item for pair in (arguments[0] if arguments else []) for item in pair]
        return _pairs(pairs)
    if meaning == "bytes":
        return _bytes(arguments[0]) if arguments else b""
    raise SavedModelError("it calls something that is no part of arrays")


def _build(part: Any, state: Any) -> None:
    state = _expect(state, tuple)
    if isinstance(part, _Dtype):
        if state[1] not in ("<", ">", "|", "=") or any(item not in (None, ()) for item in state[2:5]):
            raise SavedModelError("it holds a dtype of fields; expected numbers or texts")
        part.order = state[1]
    elif isinstance(part, _Array):
        _, dims, dtype, fortran, data = state
        part.value = _numbers(data, dtype, dims, bool(fortran))
    else:
        raise SavedModelError(f"it sets the state of {type(part).__name__}, which is no part of arrays")


def _numbers(data: Any, dtype: Any, dims: Any, fortran: bool) -> Any:
    """Build an array from its bytes, dtype and dims; raise SavedModelError if their sizes disagree."""
    kind = _expect(dtype, _Dtype).dtype()
    content, dims = _bytes(data), _expect(dims, tuple)
    if len(dims) > 32 or not all(type(dim) is int and dim >= 0 for dim in dims):
        raise SavedModelError(f"it holds an array of dims {dims!r:.60}")
    if prod(dims) * kind.itemsize != len(content):
        raise SavedModelError(f"it holds an array of dims {dims!r:.60} and {kind} with {len(content):,} bytes")
    if not len(content):
        return np.empty(dims, kind)
    return np.frombuffer(content, kind).reshape(dims, order="F" if fortran else "C")


def _bytes(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode("latin-1")  # Python 2 pickled bytes as text
    if not isinstance(value, (bytes, bytearray)):
        raise SavedModelError(f"it holds {type(value).__name__} where bytes are expected")
    return bytes(value)


def _text(value: Any) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(_expect(value, str))


def _finished(value: Any, depth: int, budget: _Budget) -> Any:
    """Return the values with each :class:`_Array` replaced by its array."""
    budget.take(1)
    if depth > _MAX_DEPTH:
        raise SavedModelError("its values lie in each other too deep")
    if isinstance(value, _Array):
        if value.value is None:
            raise SavedModelError("it holds an array without numbers")
        return value.value
    if isinstance(value, (_Named, _Dtype)) or value is _MARK:
        raise SavedModelError("it holds something else than values")
    if isinstance(value, dict):
        return {key: _finished(item, depth + 1, budget) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_finished(item, depth + 1, budget) for item in value)
    return value
