"""The execution context of a board's command queue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fluidlite.plugin import ContextBase, Place, Span

from fluidlite_fpga.link import Link, Sender
from fpga_simulator import wire
from fpga_simulator.wire import Launch, Op


class FpgaEvent:
    """A fence in the queue of a context."""

    def __init__(self, link: Link, client: int, sequence: int) -> None:
        self.link = link
        self._client = client
        self.sequence = sequence

    def done(self) -> bool:
        """Whether the board has passed the fence (or has ended)."""
        return self.link.is_answered(self.sequence)

    def wait(self) -> None:
        """Block until the board has passed the fence; raise errors of earlier commands."""
        self.link.wait(self._client, self.sequence, "fence")


class FpgaContext(ContextBase):
    """Commands to one queue of a board, executed in order; only ``wait`` and events block.

    The board's queues run concurrently: reading data that the other queue writes needs ``wait_for``.
    A command that fails is reported by the next ``wait``.
    """

    def __init__(self, place: Place, link: Link, queue: int) -> None:
        super().__init__(place)
        self._link = link
        self._sender = Sender(queue, link.new_client())

    def copy_in(self, dst: Span, src: memoryview) -> None:
        """Send bytes to the board; returns before the board has received them."""
        if src.nbytes:
            what = f"copy_in of {src.nbytes} bytes"
            self._link.post(self._sender, Op.COPY_IN, what, wire.ADDRESS.pack(address(dst)), src.cast("B"))

    def copy_out(self, dst: memoryview, src: Span) -> None:
        """Request bytes of the board; ``dst`` holds them after ``wait`` or a later event."""
        if dst.nbytes:
            what = f"copy_out of {dst.nbytes} bytes"
            fields = wire.RANGE.pack(address(src), dst.nbytes)
            self._link.post(self._sender, Op.COPY_OUT, what, fields, sink=dst.cast("B"))

    def copy_within(self, dst: Span, src: Span) -> None:
        """Copy inside the board's memory."""
        if src.nbytes:
            what = f"copy_within of {src.nbytes} bytes"
            fields = wire.MOVE.pack(address(dst), address(src), src.nbytes)
            self._link.post(self._sender, Op.COPY_WITHIN, what, fields)

    def enqueue(
        self,
        kernel: str,
        dtype: str,
        operands: Sequence[Span],
        numbers: Sequence[int],
        scalars: Sequence[float] = (),
        program: str = "",
    ) -> None:
        """Enqueue a kernel of the board.

        Parameters
        ----------
        kernel : str
            Its name on the board.
        dtype : str
            The compute dtype.
        operands : sequence of Span
            The operands, in the kernel's order.
        numbers, scalars : sequence of int, sequence of float
            Its other arguments.
        program : str
            The operation of a kernel that has several: for ``vector``, instructions in postfix notation.
        """
        launch = Launch(kernel, dtype, tuple(map(address, operands)), tuple(numbers), tuple(scalars), program)
        self._link.post(self._sender, Op.LAUNCH, f"launch of {kernel}", launch.pack())

    def record(self) -> FpgaEvent:
        """Enqueue a fence."""
        return FpgaEvent(self._link, self._sender.client, self._link.post(self._sender, Op.FENCE, "fence"))

    def wait_for(self, event: Any) -> None:
        """The board delays this queue until the event; for an event of another device the host waits."""
        if isinstance(event, FpgaEvent) and event.link is self._link:
            self._link.post(self._sender, Op.WAIT, "wait for an event", wire.ADDRESS.pack(event.sequence))
        else:
            event.wait()

    def wait(self) -> None:
        """Block until the board has executed all commands so far; raise their errors."""
        self.record().wait()


def address(span: Span) -> int:
    """Return the address of a span in the board's memory; 0 for an empty one."""
    return int(span.handle) + span.offset if span.nbytes else 0
