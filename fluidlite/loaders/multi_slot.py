"""Fluid's MultiSlot text format: a sample a line; for each slot the count of its numbers, then the numbers.

``2 17 4 1 0.5`` is a sample of two slots, the numbers 17 and 4, and 0.5.
"""

from __future__ import annotations

import re
import shlex
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from math import isinf, prod
from pathlib import Path
from typing import IO, Any, NamedTuple

from fluidlite.base.errors import LoaderError
from fluidlite.program.variable import Variable

MAX_LINE_BYTES = 1 << 26
"""Maximum bytes of a line, so that a file without line ends is not read into memory."""

_FLOAT_MAX = float.fromhex("0x1.fffffep127")
_WHOLE = re.compile(rb"[+-]?[0-9]{1,20}")
_SHELL = re.compile(r"[|&;<>()$`*?\[\]{}~#!\n]|^\s*\w+=")
"""Shell syntax in a command: pipes, variables, patterns, ..."""


class TextLine(NamedTuple):
    """A line of a file, or of a command's output; numbered from 1."""

    file: str
    number: int
    text: bytes


class TextSlot:
    """The numbers of one variable in each line.

    Raises LoaderError if the variable's declaration does not fit a slot.
    """

    def __init__(self, variable: Any) -> None:
        spec = variable.spec if isinstance(variable, Variable) else None
        if spec is None:
            raise LoaderError(f"set_use_var: {variable!r:.60}; expected variables, such as those of layers.data")
        what = f"set_use_var: variable {variable.name!r} is {spec!r}; expected"
        if spec.dtype not in ("int64", "float32"):
            raise LoaderError(f"{what} int64 or float32: slots hold no others")
        row = spec.dims[1:]
        if spec.lod_level and (spec.lod_level > 1 or prod(row) != 1):
            raise LoaderError(f"{what} one LoD level, and rows of one number")
        if row.count(-1) > 1:
            raise LoaderError(f"{what} at most one unknown dim beside the batch's")
        self.name, self.type = variable.name, "uint64" if spec.dtype == "int64" else "float"
        self.sparse = bool(spec.lod_level)
        self._row_size = prod(dim for dim in row if dim != -1)
        self._is_variable = self.sparse or -1 in row

    def numbers(self, words: Sequence[bytes]) -> array[Any]:
        """Parse the numbers of a sample.

        Raises ValueError if they are too few or too many, or a word is no number.
        """
        if len(words) != self._row_size and (
            not self._is_variable or not self._row_size or len(words) % self._row_size
        ):
            more = "a multiple of " if self._is_variable else ""
            raise ValueError(f"has {len(words)} numbers; expected {more}{self._row_size}, as it is declared")
        kind, read, check = ("f", float, _float) if self.type == "float" else ("q", int, _whole)
        try:
            values = array(kind, map(read, words))
            if b"_" not in b"".join(words) and (kind == "q" or not any(map(isinf, values))):
                return values
        except (ValueError, OverflowError):
            pass
        return array(kind, map(check, words))  # one by one, to report the wrong word


def _float(word: bytes) -> float:
    try:
        number = float(word) if b"_" not in word else None
    except ValueError:
        number = None
    if number is None or (abs(number) > _FLOAT_MAX and word.strip(b"+-")[:1].lower() != b"i"):
        raise ValueError(f"has {_quoted(word)}; expected a float32")
    return number


def _whole(word: bytes) -> int:
    number = int(word) if _WHOLE.fullmatch(word) else 1 << 64
    if not -(1 << 63) <= number < 1 << 64:
        raise ValueError(f"has {_quoted(word)}; expected a whole number of 64 bits")
    return number - (1 << 64) if number >= 1 << 63 else number  # the same bits as int64, the variables' dtype


def _quoted(word: bytes) -> str:
    return repr(word[:40].decode("ascii", "backslashreplace"))


def sample_of(slots: Sequence[TextSlot], line: TextLine) -> tuple[array[Any], ...]:
    """Parse a line: return the numbers of each slot.

    Raises LoaderError with file, line and slot for an invalid count or number, or a wrong number of them.
    """
    words, position = line.text.split(), 0
    values = []
    for slot in slots:
        try:
            count = _count(words, position)
            values.append(slot.numbers(words[position + 1 : position + 1 + count]))
        except ValueError as exc:
            raise LoaderError(f"{line.file}, line {line.number}: slot {slot.name!r} {exc}") from None
        position += 1 + count
    if position < len(words):
        raise LoaderError(
            f"{line.file}, line {line.number} goes on with {_quoted(words[position])} after {len(slots)} slots"
            "\n  Do: give set_use_var a variable for each slot of the file, in its order"
        )
    return tuple(values)


def _count(words: Sequence[bytes], position: int) -> int:
    """Parse the count of a slot.

    Raises ValueError if it is no count, or the line has too few words.
    """
    if position == len(words):
        raise ValueError("is missing: the line ends before it")
    count = int(words[position]) if len(words[position]) < 19 and words[position].isdigit() else 0
    if not count:
        do = "\n  Do: pad what is empty, such as by one 0"
        raise ValueError(f"has the count {_quoted(words[position])}; expected a whole number of 1 or more{do}")
    if count >= len(words) - position:
        raise ValueError(f"has {len(words) - position - 1} numbers; its count says {count}")
    return count


def lines_of(files: Sequence[str], command: str) -> Iterator[TextLine]:
    """Iterate over the lines of files, or of a command's output for each.

    Raises LoaderError if a file cannot be read, a line is too long, or the command fails.
    """
    for name in files:
        with _opened(name, command) as stream:
            for number, text in enumerate(iter(partial(stream.readline, MAX_LINE_BYTES), b""), 1):
                if len(text) == MAX_LINE_BYTES:
                    raise LoaderError(
                        f"{name}, line {number} has {MAX_LINE_BYTES:,} bytes or more; expected a sample a line"
                    )
                yield TextLine(name, number, text)


@contextmanager
def _opened(name: str, command: str) -> Iterator[IO[bytes]]:
    try:
        with Path(name).open("rb") as file:
            if command == "cat":
                yield file
            else:
                with _piped(file, name, command) as output:
                    yield output
    except OSError as exc:
        raise LoaderError(f"the file {name!r} cannot be read: {exc}") from exc


@contextmanager
def _piped(file: IO[bytes], name: str, command: str) -> Iterator[IO[bytes]]:
    import subprocess  # slow to import, and seldom needed

    shell = _SHELL.search(command) is not None
    try:
        arguments = command if shell else shlex.split(command)
        process = subprocess.Popen(arguments, shell=shell, stdin=file, stdout=subprocess.PIPE)
    except OSError as exc:
        raise LoaderError(f"the pipe command {command!r} cannot be run: {exc}") from exc
    with process:
        assert process.stdout is not None
        try:
            yield process.stdout
        except BaseException:  # also if the iteration is abandoned
            process.kill()
            raise
    if process.returncode:
        raise LoaderError(f"the pipe command {command!r} ended with status {process.returncode}, reading {name!r}")
