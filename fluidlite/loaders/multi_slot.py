"""Text files of samples: a line each, for each slot how many numbers, and the numbers. The format is Fluid's MultiSlot.

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

LONGEST = 1 << 26
"""Bytes of a line: a file without line ends is not read as a whole."""

_FLOAT_MAX = float.fromhex("0x1.fffffep127")
_WHOLE = re.compile(rb"[+-]?[0-9]{1,20}")
_SHELL = re.compile(r"[|&;<>()$`*?\[\]{}~#!\n]|^\s*\w+=")
"""What a shell has to read: pipes, variables, patterns, ..."""


class TextLine(NamedTuple):
    """A line of a file; lines are counted from 1, those of a command's output too."""

    file: str
    number: int
    text: bytes


class Slot:
    """A variable that each line has numbers for.

    Raises LoaderError if no slot holds what it declares.
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
        self._known = prod(dim for dim in row if dim != -1)
        self._open = self.sparse or -1 in row

    def numbers(self, words: Sequence[bytes]) -> array[Any]:
        """The numbers of a sample, which ``words`` are the text of.

        Raises ValueError if they are too few or too many, or one is none.
        """
        if len(words) != self._known and (not self._open or not self._known or len(words) % self._known):
            more = "a multiple of " if self._open else ""
            raise ValueError(f"has {len(words)} numbers; expected {more}{self._known}, as it is declared")
        kind, read, check = ("f", float, _float) if self.type == "float" else ("q", int, _whole)
        try:
            found = array(kind, map(read, words))
            if b"_" not in b"".join(words) and (kind == "q" or not any(map(isinf, found))):
                return found
        except (ValueError, OverflowError):
            pass
        return array(kind, map(check, words))  # one by one: which of them is none


def _float(word: bytes) -> float:
    try:
        found = float(word) if b"_" not in word else None
    except ValueError:
        found = None
    if found is None or (abs(found) > _FLOAT_MAX and word.strip(b"+-")[:1].lower() != b"i"):
        raise ValueError(f"has {_shown(word)}; expected a float32")
    return found


def _whole(word: bytes) -> int:
    found = int(word) if _WHOLE.fullmatch(word) else 1 << 64
    if not -(1 << 63) <= found < 1 << 64:
        raise ValueError(f"has {_shown(word)}; expected a whole number of 64 bits")
    return found - (1 << 64) if found >= 1 << 63 else found  # the same bits: variables are int64


def _shown(word: bytes) -> str:
    return repr(word[:40].decode("ascii", "backslashreplace"))


def sample_of(slots: Sequence[Slot], line: TextLine) -> tuple[array[Any], ...]:
    """The numbers of each slot.

    Raises LoaderError, which names file, line and slot: a count or a number that is none, or too few or too many.
    """
    words, at = line.text.split(), 0
    found = []
    for slot in slots:
        try:
            count = _count(words, at)
            found.append(slot.numbers(words[at + 1 : at + 1 + count]))
        except ValueError as exc:
            raise LoaderError(f"{line.file}, line {line.number}: slot {slot.name!r} {exc}") from None
        at += 1 + count
    if at < len(words):
        raise LoaderError(
            f"{line.file}, line {line.number} goes on with {_shown(words[at])} after {len(slots)} slots"
            "\n  Do: give set_use_var a variable for each slot of the file, in its order"
        )
    return tuple(found)


def _count(words: Sequence[bytes], at: int) -> int:
    """How many numbers follow.

    Raises ValueError if the line does not say it, or ends before.
    """
    if at == len(words):
        raise ValueError("is missing: the line ends before it")
    count = int(words[at]) if len(words[at]) < 19 and words[at].isdigit() else 0
    if not count:
        do = "\n  Do: pad what is empty, such as by one 0"
        raise ValueError(f"has the count {_shown(words[at])}; expected a whole number of 1 or more{do}")
    if count >= len(words) - at:
        raise ValueError(f"has {len(words) - at - 1} numbers; its count says {count}")
    return count


def lines_of(files: Sequence[str], command: str) -> Iterator[TextLine]:
    """The lines of files, one after another, or of what a command makes of each.

    Raises LoaderError: a file cannot be read, a line is too long, or the command fails.
    """
    for name in files:
        with _opened(name, command) as stream:
            for number, text in enumerate(iter(partial(stream.readline, LONGEST), b""), 1):
                if len(text) == LONGEST:
                    raise LoaderError(f"{name}, line {number} has {LONGEST:,} bytes or more; expected a sample a line")
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
    import subprocess  # takes a while, and few files have a command

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
        except BaseException:  # also of a run that is left before the end
            process.kill()
            raise
    if process.returncode:
        raise LoaderError(f"the pipe command {command!r} ended with status {process.returncode}, reading {name!r}")
