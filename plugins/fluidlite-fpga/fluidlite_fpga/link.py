"""The link to one board: starts its process, sends commands, receives answers, notices its death."""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
import threading
from collections import OrderedDict
from itertools import count
from typing import NamedTuple

from fluidlite.plugin import DeviceError, DeviceLost

from fluidlite_fpga.process import BoardProcess
from fpga_simulator import wire
from fpga_simulator.timing import MAX_FENCES
from fpga_simulator.wire import Body, Header, Op, Status


class Sender(NamedTuple):
    """Which queue of the board commands go through, and who sends them."""

    queue: int
    client: int


CONTROL = Sender(0, 0)
"""The sender of calls; contexts take a client's number from ``new_client``."""

_NOTHING = memoryview(b"")
_PATIENCE = 5.0
"""Seconds that a board gets to finish its queue when it is closed."""


class Link:
    """A board's process and the connection to it, for use from any thread.

    Commands are numbered, and the board executes them in that order; so the number that was
    answered last tells how far it is. A thread of the link receives the answers.

    Parameters
    ----------
    name : str
        The place's text, for messages.
    memory : int
        Bytes of the board's memory.

    Attributes
    ----------
    pid : int
        The board's process.
    """

    def __init__(self, name: str, memory: int) -> None:
        self.name = name
        self._sending = threading.Lock()
        self._news = threading.Condition()  # guards what the listener writes, below
        self._answered = 0
        self._answers: dict[int, tuple[int, bytes]] = {}
        self._sinks: dict[int, memoryview] = {}
        self._failures: dict[int, str] = {}
        self._lost = ""
        self._closed = ""
        self._sequence = 0
        self._latest = "none"
        self._clients = count(CONTROL.client + 1)
        self._times: OrderedDict[int, int] = OrderedDict()  # when answered commands ended, in cycles of the board
        self._time = 0
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = BoardProcess(theirs, memory)
        self.pid = self._process.pid
        self._board = f"the process {self.pid} of {name}"
        self._listener = threading.Thread(target=self._listen, name=f"{name} listener", daemon=True)
        self._listener.start()
        atexit.register(self.close)
        os.register_at_fork(after_in_child=self._disown)

    def new_client(self) -> int:
        """Return a number under which the failures of one context are kept apart."""
        return next(self._clients)

    def post(
        self,
        sender: Sender,
        op: Op,
        what: str,
        fields: bytes = b"",
        data: memoryview = _NOTHING,
        sink: memoryview | None = None,
    ) -> int:
        """Send a command and return its number, without waiting for the board.

        Parameters
        ----------
        sender : Sender
            Who asks, and through which queue.
        op : Op
            The command.
        what : str
            The command in words, for messages.
        fields, data : bytes, memoryview
            Its body in two parts; ``data`` is not copied.
        sink : memoryview, optional
            Writable bytes that the answer fills when it comes.

        Raises
        ------
        DeviceLost
            If the board is gone.
        """
        with self._sending:
            if self._lost:
                raise self._gone(what)
            self._sequence += 1
            self._latest = what
            if sink is not None:
                self._sinks[self._sequence] = sink
            try:
                header = Header(op, sender.queue, sender.client, self._sequence, self._time, 0)
                wire.send(self._socket, header, fields, data)
            except OSError:
                self._listener.join()  # it sees the same end, and finds out why
                raise self._gone(what) from None
            except BaseException:  # half a command is in the connection, so nothing can follow it
                self._hang_up(f"was closed as an interrupt cut short: {what}", socket.SHUT_RDWR)
                raise
            return self._sequence

    def call(self, op: Op, what: str, fields: bytes = b"") -> bytes:
        """Send a command and return its answer.

        Raises
        ------
        DeviceError, DeviceLost, MemoryError
            If the board refuses, is gone, or has not the memory that was asked.
        """
        sequence = self.post(CONTROL, op, what, fields)
        self.wait(CONTROL.client, sequence, what)
        status, answer = self._answers.pop(sequence)
        if status == Status.OUT_OF_MEMORY:
            raise MemoryError(f"{self.name}: {answer.decode()}")
        if status == Status.FAILED:
            raise DeviceError(f"{self.name}: {answer.decode()}")
        return answer

    def reached(self, sequence: int) -> bool:
        """Whether the command of that number, which asks for an answer, is done (or never will be)."""
        return self._answered >= sequence or bool(self._lost)

    def wait(self, client: int, sequence: int, what: str) -> None:
        """Block until the command of that number is answered.

        Raises
        ------
        DeviceError
            If a command of this client has failed since the last ``wait``; the first failure counts.
        DeviceLost
            If the board is gone.
        """
        with self._news:
            self._news.wait_for(lambda: self.reached(sequence))
            if self._answered < sequence:
                raise self._gone(what)
            self._time = max(
                self._time, self._times.get(sequence, 0)
            )  # what the host sends now comes after what it has seen end
            failure = self._failures.pop(client, None)
        if failure:
            raise DeviceError(f"{self.name}: {failure}")

    def close(self) -> None:
        """End the board's process, which gets some time to finish its queue. May be called twice."""
        atexit.unregister(self.close)
        self._hang_up("was closed", socket.SHUT_WR)
        self._listener.join(_PATIENCE)
        self._hang_up("was closed", socket.SHUT_RDWR)
        self._listener.join()
        with self._sending:
            self._socket.close()

    def _hang_up(self, reason: str, direction: int) -> None:
        self._closed = self._closed or f"{self._board} {reason}"
        with contextlib.suppress(OSError):
            self._socket.shutdown(direction)

    def _gone(self, what: str) -> DeviceLost:
        return DeviceLost(
            f"{self._lost}. Found out by: {what}; last command sent: {self._latest}. What its memory held is gone."
        )

    def _listen(self) -> None:
        try:
            while True:
                self._accept(*wire.receive(self._socket))
        except (EOFError, OSError):
            pass  # the end of the connection, by either side
        finally:
            end = self._process.end()
            with self._news:
                self._lost = self._closed or f"{self._board} {end}"
                self._sinks.clear()
                self._news.notify_all()

    def _accept(self, header: Header, body: Body) -> None:
        sink = self._sinks.pop(header.sequence, None)
        if sink is not None and header.code == Status.OK:
            body.into(sink)
        text = body.rest()
        with self._news:
            if header.client == CONTROL.client:
                self._answers[header.sequence] = header.code, text
            elif header.code != Status.OK:
                self._failures.setdefault(header.client, text.decode())
            self._times[header.sequence] = header.time
            if len(self._times) > MAX_FENCES:
                self._times.popitem(last=False)
            self._answered = header.sequence
            self._news.notify_all()

    def _disown(self) -> None:
        """In a forked child: leave the board to the parent, whose locks may be held here for ever."""
        self._socket.close()
        self._sending = threading.Lock()
        self._news = threading.Condition()
        self._lost = self._lost or f"{self._board} belongs to process {os.getppid()}, of which this is a fork"
