"""The link to one board: starts its process, sends commands, receives answers, detects its end."""

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
    """The board's queue for commands, and the number of their sender."""

    queue: int
    client: int


CONTROL = Sender(0, 0)
"""The sender of calls; contexts get a client's number from ``new_client``."""
RELEASES = Sender(0, 1)
"""The sender of releases, which have no waiter."""

_NOTHING = memoryview(b"")
_CLOSE_TIMEOUT = 5.0
"""Seconds for a closed board to finish its queue."""


class Link:
    """A board's process and the connection to it, for use from any thread.

    Commands are numbered, and the board executes them in that order; so the number of the
    last answer is the board's progress. A thread of the link receives the answers.

    A finaliser runs wherever Python collects garbage: while the same thread sends a command, or on the thread that
    receives. So a release is only queued, and the next command sends it first; any other call of a finaliser there
    raises, as it would split a command or deadlock.

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
        self._busy = False  # a command is being sent: the owner of the lock that finds it set is a finaliser
        self._released: deque[int] = deque()
        self._allocated: set[int] = set()
        self._state_changed = threading.Condition()  # guards the fields below, which the listener writes
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
        os.register_at_fork(after_in_child=self._detach_in_child)

    def new_client(self) -> int:
        """Return a client's number, by which the failures of contexts are separated."""
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
            The client and the queue.
        op : Op
            The command.
        what : str
            A description of the command, for messages.
        fields, data : bytes, memoryview
            Its body in two parts; ``data`` is not copied.
        sink : memoryview, optional
            A buffer for the body of the answer.

        Raises
        ------
        DeviceLost
            If the board has ended.
        DeviceError
            If a finaliser calls it while another command is sent.
        """
        with self._sending:
            if self._lost:
                raise self._lost_error(what)
            if self._busy:
                raise self._reentry_error(what, f"while this thread sent: {self._latest}")
            try:
                self._busy = True
                self._send_releases()
                return self._send(sender, op, what, fields, data, sink)
            except OSError:
                self._listener.join()  # it detects the same end, and sets the reason
                raise self._lost_error(what) from None
            except BaseException:  # the connection has a partial command, so no other can follow
                self._shut_down(f"was closed as an interrupt cut short: {what}", socket.SHUT_RDWR)
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
        """Allocate memory of the board and return its address.

        Raises
        ------
        DeviceError, DeviceLost, MemoryError
            If the board reports an error, has ended, or is out of memory.
        """
        answer = self.call(Op.ALLOCATE, f"allocation of {nbytes} bytes", wire.ADDRESS.pack(nbytes))
        address = int.from_bytes(answer, "little")
        self._allocated.add(address)
        return address

    def release(self, address: int) -> None:
        """Queue a release, which the next command or ``close`` sends. Finalisers may call it.

        Raises
        ------
        DeviceError
            If no allocated block starts there.
        """
        if self._lost:  # the memory ended with the board
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
            If the board reports an error (of this command or an earlier release), has ended, or is out of memory.
        """
        self._raise_pending_failure(RELEASES.client)
        sequence = self.post(CONTROL, op, what, fields)
        self.wait(CONTROL.client, sequence, what)
        status, answer = self._answers.pop(sequence)
        if status == Status.OUT_OF_MEMORY:
            raise MemoryError(f"{self.name}: {answer.decode()}")
        if status == Status.FAILED:
            raise DeviceError(f"{self.name}: {answer.decode()}")
        return answer

    def is_answered(self, sequence: int) -> bool:
        """Whether the command of that number has been answered (or never will be)."""
        return self._answered >= sequence or bool(self._lost)

    def wait(self, client: int, sequence: int, what: str) -> None:
        """Block until the command of that number is answered.

        Raises
        ------
        DeviceError
            If a command of this client has failed since the last ``wait``; it reports the first failure. If a
            finaliser waits on the thread that receives answers.
        DeviceLost
            If the board has ended.
        """
        if threading.get_ident() == self._listener.ident and not self.is_answered(sequence):
            raise self._reentry_error(what, "on the thread that receives the board's answers")
        with self._state_changed:
            self._state_changed.wait_for(lambda: self.is_answered(sequence))
            if self._answered < sequence:
                raise self._lost_error(what)
            # later commands of the host start after the end of this one
            self._time = max(self._time, self._times.get(sequence, 0))
        self._raise_pending_failure(client)

    def _raise_pending_failure(self, client: int) -> None:
        failure = self._failures.pop(client, None)
        if failure:
            raise DeviceError(f"{self.name}: {failure}")

    def close(self) -> None:
        """End the board's process after its queue, within a timeout. May be called twice."""
        atexit.unregister(self.close)
        self._send_last_releases()
        self._shut_down("was closed", socket.SHUT_WR)
        self._listener.join(_CLOSE_TIMEOUT)
        self._shut_down("was closed", socket.SHUT_RDWR)
        self._listener.join()
        with self._sending:
            self._socket.close()

    def _send_last_releases(self) -> None:
        if not self._sending.acquire(blocking=False):
            return  # another thread is sending a command, and the releases with it
        try:
            if not self._busy and not self._lost:
                try:
                    self._busy = True
                    self._send_releases()
                finally:
                    self._busy = False
        except OSError:
            pass  # the board has already ended
        finally:
            self._sending.release()

    def _shut_down(self, reason: str, how: int) -> None:
        self._closed = self._closed or f"{self._board} {reason}"
        with contextlib.suppress(OSError):
            self._socket.shutdown(how)

    def _reentry_error(self, what: str, where: str) -> DeviceError:
        return DeviceError(
            f"{self.name}: {what} was asked for {where}; it would wait for itself. A finaliser that Python's garbage "
            "collector calls asks so\n  Do: give back memory in finalisers, and nothing else"
        )

    def _lost_error(self, what: str) -> DeviceLost:
        return DeviceLost(
            f"{self._lost}. Found out by: {what}; last command sent: {self._latest}. What its memory held is gone."
        )

    def _listen(self) -> None:
        try:
            while True:
                self._handle_answer(*wire.receive(self._socket))
        except (EOFError, OSError):
            pass  # either side closed the connection
        finally:
            end = self._process.end()
            with self._state_changed:
                self._lost = self._closed or f"{self._board} {end}"
                self._sinks.clear()
                self._state_changed.notify_all()

    def _handle_answer(self, header: Header, body: Body) -> None:
        sink = self._sinks.pop(header.sequence, None)
        if sink is not None and header.code == Status.OK:
            body.into(sink)
        text = body.rest()
        with self._state_changed:
            if header.client == CONTROL.client:
                self._answers[header.sequence] = header.code, text
            elif header.code != Status.OK:
                self._failures.setdefault(header.client, text.decode())
            self._times[header.sequence] = header.time
            if len(self._times) > MAX_FENCES:
                self._times.popitem(last=False)
            self._answered = header.sequence
            self._state_changed.notify_all()

    def _detach_in_child(self) -> None:
        """In a forked child: drop the connection; locks that the parent held at the fork are replaced."""
        self._socket.close()
        self._sending, self._busy = threading.RLock(), False
        self._released.clear()
        self._state_changed = threading.Condition()
        self._lost = self._lost or f"{self._board} belongs to process {os.getppid()}, of which this is a fork"
