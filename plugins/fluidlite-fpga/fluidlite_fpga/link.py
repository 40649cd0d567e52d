"""The link to one board: starts its process, sends commands, receives answers, notices its death."""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
import threading
from collections import OrderedDict, deque
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
RELEASES = Sender(0, 1)
"""The sender of releases, which nobody waits for."""

_NOTHING = memoryview(b"")
_PATIENCE = 5.0
"""Seconds that a board gets to finish its queue when it is closed."""


class Link:
    """A board's process and the connection to it, for use from any thread.

    Commands are numbered, and the board executes them in that order; so the number that was
    answered last tells how far it is. A thread of the link receives the answers.

    A finaliser runs wherever Python collects garbage: in the middle of a command that the same thread sends, or on the
    thread that receives. So a release is only noted, and the next command sends it in front of itself; whatever else a
    finaliser asks for there is refused, as it would cut a command in two or wait for itself.

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
        self._sending = threading.RLock()
        self._busy = False  # a command is being sent; whoever sees it with the lock is a finaliser in its middle
        self._released: deque[int] = deque()
        self._allocated: set[int] = set()
        self._news = threading.Condition()  # guards what the listener writes, below
        self._answered = 0
        self._answers: dict[int, tuple[int, bytes]] = {}
        self._sinks: dict[int, memoryview] = {}
        self._failures: dict[int, str] = {}
        self._lost = ""
        self._closed = ""
        self._sequence = 0
        self._latest = "none"
        self._clients = count(RELEASES.client + 1)
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
        DeviceError
            If a finaliser asks in the middle of another command.
        """
        with self._sending:
            if self._lost:
                raise self._gone(what)
            if self._busy:
                raise self._amid(what, f"while this thread sent: {self._latest}")
            try:
                self._busy = True
                self._send_releases()
                return self._send(sender, op, what, fields, data, sink)
            except OSError:
                self._listener.join()  # it sees the same end, and finds out why
                raise self._gone(what) from None
            except BaseException:  # half a command is in the connection, so nothing can follow it
                self._hang_up(f"was closed as an interrupt cut short: {what}", socket.SHUT_RDWR)
                raise
            finally:
                self._busy = False

    def _send(
        self,
        sender: Sender,
        op: Op,
        what: str,
        fields: bytes,
        data: memoryview = _NOTHING,
        sink: memoryview | None = None,
    ) -> int:
        self._sequence += 1
        self._latest = what
        if sink is not None:
            self._sinks[self._sequence] = sink
        header = Header(op, sender.queue, sender.client, self._sequence, self._time, 0)
        wire.send(self._socket, header, fields, data)
        return self._sequence

    def _send_releases(self) -> None:
        while self._released:
            address = self._released.popleft()
            self._send(RELEASES, Op.RELEASE, f"release of {address:#x}", wire.ADDRESS.pack(address))

    def allocate(self, nbytes: int) -> int:
        """Let the board find memory, and return its address.

        Raises
        ------
        DeviceError, DeviceLost, MemoryError
            If the board refuses, is gone, or has not the memory that was asked.
        """
        answer = self.call(Op.ALLOCATE, f"allocation of {nbytes} bytes", wire.ADDRESS.pack(nbytes))
        address = int.from_bytes(answer, "little")
        self._allocated.add(address)
        return address

    def release(self, address: int) -> None:
        """Note that memory is given back; the next command, or the link's end, tells the board. For finalisers, too.

        Raises
        ------
        DeviceError
            If no allocated memory begins there.
        """
        if self._lost:  # the memory went with the board
            return
        try:
            self._allocated.remove(address)
        except KeyError:
            raise DeviceError(f"{self.name}: release: {address:#x} is not the start of an allocated block") from None
        self._released.append(address)

    def call(self, op: Op, what: str, fields: bytes = b"") -> bytes:
        """Send a command and return its answer.

        Raises
        ------
        DeviceError, DeviceLost, MemoryError
            If the board refuses (this command, or a release before it), is gone, or has not the memory that was asked.
        """
        self._raise_failure(RELEASES.client)
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
            If a command of this client has failed since the last ``wait``; the first failure counts. If a finaliser
            asks on the thread that receives answers.
        DeviceLost
            If the board is gone.
        """
        if threading.get_ident() == self._listener.ident and not self.reached(sequence):
            raise self._amid(what, "on the thread that receives the board's answers")
        with self._news:
            self._news.wait_for(lambda: self.reached(sequence))
            if self._answered < sequence:
                raise self._gone(what)
            # what the host sends now comes after what it has seen end
            self._time = max(self._time, self._times.get(sequence, 0))
        self._raise_failure(client)

    def _raise_failure(self, client: int) -> None:
        failure = self._failures.pop(client, None)
        if failure:
            raise DeviceError(f"{self.name}: {failure}")

    def close(self) -> None:
        """End the board's process, which gets some time to finish its queue. May be called twice."""
        atexit.unregister(self.close)
        self._send_last_releases()
        self._hang_up("was closed", socket.SHUT_WR)
        self._listener.join(_PATIENCE)
        self._hang_up("was closed", socket.SHUT_RDWR)
        self._listener.join()
        with self._sending:
            self._socket.close()

    def _send_last_releases(self) -> None:
        if not self._sending.acquire(blocking=False):
            return  # the command that another thread sends took them along
        try:
            if not self._busy and not self._lost:
                try:
                    self._busy = True
                    self._send_releases()
                finally:
                    self._busy = False
        except OSError:
            pass  # the board has ended before
        finally:
            self._sending.release()

    def _hang_up(self, reason: str, direction: int) -> None:
        self._closed = self._closed or f"{self._board} {reason}"
        with contextlib.suppress(OSError):
            self._socket.shutdown(direction)

    def _amid(self, what: str, where: str) -> DeviceError:
        return DeviceError(
            f"{self.name}: {what} was asked for {where}; it would wait for itself. A finaliser that Python's garbage "
            "collector calls asks so\n  Do: give back memory in finalisers, and nothing else"
        )

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
        self._sending, self._busy = threading.RLock(), False
        self._released.clear()
        self._news = threading.Condition()
        self._lost = self._lost or f"{self._board} belongs to process {os.getppid()}, of which this is a fork"
