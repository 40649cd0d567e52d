"""The process of a board: a child process that ends when its socket is closed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import fpga_simulator

_EXIT_TIMEOUT = 5.0
"""Seconds for a board to exit after its connection was closed."""
_ONE_THREAD = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
"""A board has one matrix unit. Threads of NumPy's BLAS spin while they wait for each other; if cores are few or
busy, a small matmul takes a hundred times as long."""


class BoardProcess:
    """The process of one board.

    It is a new interpreter, not a fork (the parent has threads and drivers), in its own
    session, so that Ctrl-C in a terminal interrupts only the host's program.

    Parameters
    ----------
    link : socket.socket
        The board's end of the connection.
    memory : int
        Bytes of the board's memory.
    """

    def __init__(self, link: socket.socket, memory: int) -> None:
        root = str(Path(fpga_simulator.__file__).parents[1])
        path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
        self._process = subprocess.Popen(
            [sys.executable, "-m", fpga_simulator.__name__, str(link.fileno()), str(memory)],
            env={**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1", **_ONE_THREAD},
            stdin=subprocess.DEVNULL,
            pass_fds=(link.fileno(),),
            start_new_session=True,
        )
        self.pid = self._process.pid

    def end(self) -> str:
        """Wait for the exit of the process, whose connection is closed; return the kind of exit, for messages."""
        try:
            code = self._process.wait(_EXIT_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            return "left the connection and was ended"
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
