"""The protocol between driver and board: frames of one header, fixed fields and raw bytes.

The driver sends commands, which the board executes in the order of arrival. A command is
answered if it has an answer, or if it failed; answers are in the order of the commands.
"""

from __future__ import annotations

import socket
from enum import IntEnum
from struct import Struct
from typing import Any, NamedTuple

_HEADER = Struct("<HHIQQQ")
_LAUNCH = Struct("<32s8sHHHH")
_CHUNK = 1 << 16

ADDRESS = Struct("<Q")
RANGE = Struct("<QQ")
MOVE = Struct("<QQQ")


class Op(IntEnum):
    """The commands; in brackets the body, after the arrow the body of the answer.

    ``COPY_IN``, ``COPY_WITHIN`` and ``LAUNCH`` are answered only if they fail.
    """

    ALLOCATE = 1  # (nbytes) -> address
    RELEASE = 2  # (address) -> nothing
    COPY_IN = 3  # (address, data)
    COPY_OUT = 4  # (address, nbytes) -> data
    COPY_WITHIN = 5  # (to, from, nbytes)
    LAUNCH = 6  # (a packed Launch)
    FENCE = 7  # () -> nothing
    LOG = 8  # () -> JSON
    CLEAR_LOG = 9  # () -> nothing
    WAIT = 10  # (number of a fence): later commands of this queue start after it


class Status(IntEnum):
    """The result of a command; the body of an answer that is not OK is an error message."""

    OK = 0
    FAILED = 1
    OUT_OF_MEMORY = 2


class Header(NamedTuple):
    """The header of a frame.

    Attributes
    ----------
    code : int
        An Op; in answers a Status.
    queue : int
        The board's queue that executes the command.
    client : int
        The number of the sender.
    sequence : int
        The number of the command.
    time : int
        In cycles of the board: the earliest start of the command; in answers, its end.
    nbytes : int
        Size of the body.
    """

    code: int
    queue: int
    client: int
    sequence: int
    time: int
    nbytes: int

    def pack(self) -> bytes:
        """Return the header's bytes."""
        return _HEADER.pack(*self)


class Launch(NamedTuple):
    """Body of a LAUNCH: the kernel, its compute dtype, its arguments and its program."""

    kernel: str
    dtype: str
    addresses: tuple[int, ...]
    numbers: tuple[int, ...]
    scalars: tuple[float, ...]
    program: str = ""

    def pack(self) -> bytes:
        """Return the body's bytes."""
        counts = len(self.addresses), len(self.numbers), len(self.scalars)
        program = self.program.encode()
        head = _LAUNCH.pack(self.kernel.encode(), self.dtype.encode(), *counts, len(program))
        return head + _arguments(*counts).pack(*self.addresses, *self.numbers, *self.scalars) + program

    @classmethod
    def unpack(cls, body: Body) -> Launch:
        """Read the bytes of ``pack``."""
        kernel, dtype, addresses, numbers, scalars, program = body.take(_LAUNCH)
        arguments = body.take(_arguments(addresses, numbers, scalars))
        split = addresses + numbers
        return cls(
            kernel.rstrip(b"\0").decode(),
            dtype.rstrip(b"\0").decode(),
            arguments[:addresses],
            arguments[addresses:split],
            arguments[split:],
            body.take(Struct(f"{program}s"))[0].decode(),
        )


def _arguments(addresses: int, numbers: int, scalars: int) -> Struct:
    return Struct(f"<{addresses}Q{numbers}q{scalars}d")


class Body:
    """The body of a frame, read from the socket incrementally."""

    def __init__(self, link: socket.socket, nbytes: int) -> None:
        self._link = link
        self.left = nbytes

    def into(self, view: memoryview) -> None:
        """Fill ``view`` with the next bytes."""
        while view.nbytes:
            view = view[self._receive(view) :]

    def take(self, fields: Struct) -> tuple[Any, ...]:
        """Read fixed fields."""
        data = bytearray(fields.size)
        self.into(memoryview(data))
        return fields.unpack(data)

    def rest(self) -> bytes:
        """Read the remaining bytes."""
        data = bytearray(self.left)
        self.into(memoryview(data))
        return bytes(data)

    def skip(self) -> None:
        """Discard the remaining bytes."""
        scratch = memoryview(bytearray(min(self.left, _CHUNK)))
        while self.left:
            self._receive(scratch)

    def _receive(self, view: memoryview) -> int:
        if not self.left:
            raise ValueError("a frame is shorter than its fields")
        count = self._link.recv_into(view, min(view.nbytes, self.left))
        if not count:
            raise EOFError("the other side closed the connection")
        self.left -= count
        return count


def receive(link: socket.socket) -> tuple[Header, Body]:
    """Wait for the next frame; raise EOFError if the other side has closed the connection."""
    header = Header(*Body(link, _HEADER.size).take(_HEADER))
    return header, Body(link, header.nbytes)


def send(link: socket.socket, header: Header, fields: bytes, data: memoryview) -> None:
    """Send one frame, with its size filled in; ``data`` follows the fields without a copy."""
    link.sendall(header._replace(nbytes=len(fields) + data.nbytes).pack() + fields)
    if data.nbytes:
        link.sendall(data)
