"""The command queue of a board, as the framework sees it."""

from __future__ import annotations

from collections.abc import Sequence

from fluidlite.plugin import ContextBase, Place, Span

from fluidlite_fpga.link import Link
from fpga_simulator import wire
from fpga_simulator.wire import Launch, Op


class FpgaEvent:
    """A fence in the queue of a context."""

    def __init__(self, link: Link, queue: int, sequence: int) -> None:
        self._link = link
        self._queue = queue
        self._sequence = sequence

    def done(self) -> bool:
        """Whether the board has passed the fence (or is gone)."""
        return self._link.reached(self._sequence)

    def wait(self) -> None:
        """Block until it has; raise what failed."""
        self._link.wait(self._queue, self._sequence, "fence")


class FpgaContext(ContextBase):
    """Commands to one board, executed in order; nothing but ``wait`` and events waits for the board.

    A command that fails is reported by the next ``wait``.
    """

    def __init__(self, place: Place, link: Link) -> None:
        super().__init__(place)
        self._link = link
        self._queue = link.new_queue()

    def copy_in(self, dst: Span, src: memoryview) -> None:
        """Send bytes to the board; they are on their way when this returns."""
        if src.nbytes:
            what = f"copy_in of {src.nbytes} bytes"
            self._link.post(self._queue, Op.COPY_IN, what, wire.ADDRESS.pack(address(dst)), src.cast("B"))

    def copy_out(self, dst: memoryview, src: Span) -> None:
        """Ask the board for bytes; ``dst`` holds them after ``wait`` or a later event."""
        if dst.nbytes:
            what = f"copy_out of {dst.nbytes} bytes"
            fields = wire.RANGE.pack(address(src), dst.nbytes)
            self._link.post(self._queue, Op.COPY_OUT, what, fields, sink=dst.cast("B"))

    def copy_within(self, dst: Span, src: Span) -> None:
        """Let the board copy inside its memory."""
        if src.nbytes:
            what = f"copy_within of {src.nbytes} bytes"
            fields = wire.MOVE.pack(address(dst), address(src), src.nbytes)
            self._link.post(self._queue, Op.COPY_WITHIN, what, fields)

    def enqueue(
        self,
        kernel: str,
        dtype: str,
        operands: Sequence[Span],
        numbers: Sequence[int],
        scalars: Sequence[float] = (),
    ) -> None:
        """Enqueue a kernel of the board.

        Parameters
        ----------
        kernel : str
            Its name on the board.
        dtype : str
            What it computes in.
        operands : sequence of Span
            The memory it reads and writes, in the kernel's order.
        numbers, scalars : sequence of int, sequence of float
            Its other arguments.
        """
        launch = Launch(kernel, dtype, tuple(map(address, operands)), tuple(numbers), tuple(scalars))
        self._link.post(self._queue, Op.LAUNCH, f"launch of {kernel}", launch.pack())

    def record(self) -> FpgaEvent:
        """Put a fence into the queue."""
        return FpgaEvent(self._link, self._queue, self._link.post(self._queue, Op.FENCE, "fence"))

    def wait(self) -> None:
        """Block until the board has executed all commands so far; raise what failed."""
        self.record().wait()


def address(span: Span) -> int:
    """Return where a span starts in the board's memory; an empty one is nowhere."""
    return int(span.handle) + span.offset if span.nbytes else 0
