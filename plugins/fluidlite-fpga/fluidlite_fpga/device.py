"""The device of the plugin, and the allocator of a board's memory."""

from __future__ import annotations

import json
import os
import threading
from typing import Any

from fluidlite.plugin import AllocatorBase, DeviceBase, DeviceError, DeviceInfo, DeviceUnavailable

from fluidlite_fpga.context import FpgaContext
from fluidlite_fpga.link import Link
from fpga_simulator.memory import ALIGNMENT
from fpga_simulator.wire import Op

BOARDS = "FLUIDLITE_FPGA_BOARDS"
MEMORY = "FLUIDLITE_FPGA_MEMORY"
QUEUES = 2


class FpgaAllocator(AllocatorBase):
    """Memory of a board; a handle is an address there, which the host cannot access."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def allocate(self, nbytes: int) -> int:
        """Allocate ``nbytes`` and return their address; raise MemoryError if there is no space."""
        return self._link.allocate(nbytes)

    def release(self, handle: int) -> None:
        """Free memory; no effect if the board has ended. Finalisers may call it: the release is sent later."""
        self._link.release(handle)


class FpgaDevice(DeviceBase):
    """Simulated boards. The process of a board starts with its first context or allocator.

    Parameters
    ----------
    boards : int, optional
        The number of boards; by default the environment's ``FLUIDLITE_FPGA_BOARDS``, or 1.
    memory : int, optional
        Bytes of memory of each; by default the environment's ``FLUIDLITE_FPGA_MEMORY``, or 256 MiB.
    """

    kind = "fpga"
    place_name = "FPGAPlace"

    def __init__(self, boards: int | None = None, memory: int | None = None) -> None:
        self._boards = boards
        self._memory = memory
        self._links: dict[int, Link] = {}
        self._starting = threading.Lock()

    def probe(self) -> int:
        """Return the number of boards."""
        if os.name != "posix":
            raise DeviceUnavailable("the simulated board needs POSIX: its process inherits a socket")
        if self._memory is None:
            self._memory = _setting(MEMORY, 256 << 20)
        if self._boards is None:
            self._boards = _setting(BOARDS, 1)
        return self._boards

    def info(self, index: int) -> DeviceInfo:
        """Return the properties of a board. It stores every dtype; its kernels declare their compute dtypes."""
        self.probe()
        return DeviceInfo(name=f"simulated FPGA board {index}", memory=self._memory, alignment=ALIGNMENT, queues=QUEUES)

    def allocator(self, index: int) -> FpgaAllocator:
        """Return an allocator of a board's memory."""
        return FpgaAllocator(self.link(index))

    def context(self, index: int, queue: int) -> FpgaContext:
        """Return a context on one of a board's two queues."""
        return FpgaContext(self.place(index), self.link(index), queue)

    def link(self, index: int) -> Link:
        """Return the link to a board, which starts at its first use."""
        memory = self.info(index).memory or 0
        with self._starting:
            if index not in self._links:
                try:
                    self._links[index] = Link(str(self.place(index)), memory)
                except OSError as error:
                    raise DeviceError(f"{self.place(index)}: the board's process cannot start: {error}") from error
            return self._links[index]

    def command_log(self, index: int) -> list[dict[str, Any]]:
        """Return the commands that a board has executed, oldest first; empty before its first use."""
        if index not in self._links:
            return []
        log: list[dict[str, Any]] = json.loads(self._links[index].call(Op.LOG, "query of the log"))
        return log

    def clear_command_log(self, index: int) -> None:
        """Clear the command log of a board."""
        if index in self._links:
            self._links[index].call(Op.CLEAR_LOG, "clearing of the log")

    def close(self) -> None:
        """End all boards."""
        for link in self._links.values():
            link.close()


def _setting(name: str, default: int) -> int:
    text = os.environ.get(name, str(default))
    if not text.isdecimal():
        raise DeviceUnavailable(f"the environment's {name} is {text!r}; it must be a whole number")
    return int(text)
