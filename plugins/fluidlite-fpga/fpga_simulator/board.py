"""The board: receives commands, executes them in order, and answers those that have answers."""

from __future__ import annotations

import json
import socket
from collections import deque
from collections.abc import Callable
from typing import Any

from fpga_simulator import wire
from fpga_simulator.kernels import KERNELS, Operands
from fpga_simulator.memory import Memory, OutOfMemory
from fpga_simulator.timing import COMPUTE, COPY, Timeline, copy_cycles
from fpga_simulator.wire import Body, Header, Launch, Op, Status

_LOG_LENGTH = 100_000


class Board:
    """One simulated accelerator.

    Parameters
    ----------
    link : socket.socket
        The connection to the driver.
    capacity : int
        Bytes of device memory.
    """

    def __init__(self, link: socket.socket, capacity: int) -> None:
        self._link = link
        self._memory = Memory(capacity)
        self._timeline = Timeline()
        self._current = Header(0, 0, 0, 0, 0, 0)
        self._ended = 0
        self._log: deque[dict[str, Any]] = deque(maxlen=_LOG_LENGTH)
        self._execute: dict[Op, Callable[[Body], bytes | memoryview | None]] = {
            Op.ALLOCATE: self._allocate,
            Op.RELEASE: self._release,
            Op.COPY_IN: self._copy_in,
            Op.COPY_OUT: self._copy_out,
            Op.COPY_WITHIN: self._copy_within,
            Op.LAUNCH: self._launch,
            Op.FENCE: self._fence,
            Op.LOG: self._read_log,
            Op.CLEAR_LOG: self._clear_log,
            Op.WAIT: self._wait,
        }

    def serve(self) -> None:
        """Execute commands until the driver closes the connection."""
        try:
            while True:
                self._serve_one()
        except (EOFError, ConnectionError):
            return

    def _serve_one(self) -> None:
        header, body = wire.receive(self._link)
        op, status = Op(header.code), Status.OK
        self._current, self._ended = header, 0
        try:
            answer = self._execute[op](body)
        except (EOFError, ConnectionError):
            raise
        except OutOfMemory as error:
            status, answer = Status.OUT_OF_MEMORY, _text(op, error)
        except Exception as error:  # a failed command does not stop the board
            status, answer = Status.FAILED, _text(op, error)
        body.skip()
        if answer is not None:
            wire.send(self._link, header._replace(code=status, time=self._ended), b"", memoryview(answer))

    def _note(self, command: str, nbytes: int, **fields: Any) -> None:
        self._log.append({"command": command, "dtype": "", "dims": [], "nbytes": nbytes, **fields})

    def _timed(self, engine: str, cycles: int) -> dict[str, int]:
        """Schedule the command on an engine; return its queue and times for the log."""
        queue = self._current.queue
        start, self._ended = self._timeline.run(queue, engine, cycles, self._current.time)
        return {"queue": queue, "start": start, "end": self._ended}

    def _allocate(self, body: Body) -> bytes:
        (nbytes,) = body.take(wire.ADDRESS)
        address = self._memory.allocate(nbytes)
        self._note("allocate", nbytes)
        return wire.ADDRESS.pack(address)

    def _release(self, body: Body) -> bytes:
        (address,) = body.take(wire.ADDRESS)
        self._memory.release(address)
        self._note("release", 0)
        return b""

    def _copy_in(self, body: Body) -> None:
        (address,) = body.take(wire.ADDRESS)
        view = self._memory.view(address, body.left)
        body.into(view.data)
        self._note("copy_in", view.nbytes, **self._timed(COPY, copy_cycles(view.nbytes)))

    def _copy_out(self, body: Body) -> memoryview:
        address, nbytes = body.take(wire.RANGE)
        view = self._memory.view(address, nbytes)
        self._note("copy_out", nbytes, **self._timed(COPY, copy_cycles(nbytes)))
        return view.data

    def _copy_within(self, body: Body) -> None:
        destination, source, nbytes = body.take(wire.MOVE)
        self._memory.view(destination, nbytes)[:] = self._memory.view(source, nbytes)
        self._note("copy_within", nbytes, **self._timed(COPY, copy_cycles(nbytes)))

    def _launch(self, body: Body) -> None:
        launch = Launch.unpack(body)
        if launch.kernel not in KERNELS:
            raise LookupError(f"the board has no kernel {launch.kernel!r}; it has {', '.join(KERNELS)}")
        operands = Operands(self._memory, launch)
        try:
            KERNELS[launch.kernel](operands)
        except Exception as error:
            raise RuntimeError(f"{launch.kernel}: {error}") from error
        times = self._timed(COMPUTE, operands.cycles)
        self._note(
            launch.kernel, operands.nbytes, dtype=launch.dtype, dims=operands.dims, program=launch.program, **times
        )

    def _fence(self, body: Body) -> bytes:
        self._ended = self._timeline.fence(self._current.queue, self._current.sequence, self._current.time)
        return b""

    def _wait(self, body: Body) -> None:
        (fence,) = body.take(wire.ADDRESS)
        self._timeline.wait(self._current.queue, fence)

    def _read_log(self, body: Body) -> bytes:
        return json.dumps(list(self._log)).encode()

    def _clear_log(self, body: Body) -> bytes:
        self._log.clear()
        return b""


def _text(op: Op, error: Exception) -> bytes:
    return f"{op.name.lower()}: {str(error) or repr(error)}".encode()
