"""Producers in processes of their own: forked, told what to make by a pipe, and answering through shared memory."""

from __future__ import annotations

import contextlib
import mmap
import multiprocessing
import os
import pickle
import signal
import tempfile
import traceback
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fluidlite.base.dtypes import NUMPY
from fluidlite.base.errors import LoaderError, WorkerError
from fluidlite.base.fork import new_lock
from fluidlite.loaders.assembly import HostBatch, HostField
from fluidlite.loaders.producer import END, Producer, producer_of
from fluidlite.tensor.tensor_spec import Lod

ALIGNMENT = 64
GRACE = 0.5
"""Seconds that a process has to end by itself when it is told to; then it is terminated, then killed."""


class SharedRegion:
    """Memory that a process and its child see; it grows as the child needs it, and has no name in any file system."""

    def __init__(self) -> None:
        create = getattr(os, "memfd_create", None)
        if create is not None:
            self._file: int = create("fluidlite-loader")
        else:
            with tempfile.TemporaryFile() as file:
                self._file = os.dup(file.fileno())
        self._map: mmap.mmap | None = None
        self._size = 0

    def view(self, nbytes: int, grow: bool = False) -> memoryview:
        """The first ``nbytes``; with ``grow`` the region becomes so large, else the other side has seen to that."""
        if self._map is None or self._size < nbytes:
            if grow:
                nbytes = max(nbytes, 2 * self._size)
                os.ftruncate(self._file, nbytes)
            self._size = max(os.fstat(self._file).st_size, 1)
            self._map = mmap.mmap(self._file, self._size)  # an earlier mapping goes with its last view
        return memoryview(self._map)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file, self._map = -1, None


class _Layout(NamedTuple):
    """An answer: where the fields of a batch lie in the region."""

    fields: list[tuple[str, tuple[int, ...], str, Lod, int]]
    size: int
    nbytes: int


class _Raised(NamedTuple):
    """An answer: an exception, pickled if that can be, and its traceback as text."""

    pickled: bytes | None
    text: str


class _Epoch(NamedTuple):
    """A message to a child that stays: the epoch that begins, and its first batch; None: the last one has ended."""

    number: int | None
    first: int


class ProcessProducer(Producer):
    """Lets a child process produce.

    ``producer``: what the child uses. If its requests are local, the child makes these too.
    ``others``: those that were started before: the child closes their pipes.
    ``idle``: where it waits for the next epoch when one has ended; without, the child ends with its epoch.
    """

    def __init__(
        self,
        producer: Producer,
        others: Sequence[ProcessProducer] = (),
        idle: list[ProcessProducer] | None = None,
    ) -> None:
        if "fork" not in multiprocessing.get_all_start_methods():
            raise LoaderError("processes=True needs fork, which this system does not have\n  Do: use threads")
        context = multiprocessing.get_context("fork")
        self._region = SharedRegion()
        self._pipe, theirs = context.Pipe()
        self._sending = new_lock()
        self._told = self._stopped = self._resting = False
        self._busy = False
        self._idle = idle
        inherited = [self._pipe, *(other._pipe for other in others)]
        self.process = context.Process(
            target=_serve, args=(theirs, producer, self._region, inherited), name="fluidlite-loader", daemon=True
        )
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads: locks are seen to
                self.process.start()
        except BaseException:
            self._pipe.close()
            self._region.close()
            raise
        finally:
            theirs.close()

    def request(self) -> Any:
        """What the child is asked where it makes the requests: the next one."""
        return None

    def produce(self, request: Any) -> Any:
        """Let the child make a batch; its arrays are valid until the next call. END: there is none.

        Raises Exception: what the child raised, with its traceback as the cause.
        Raises WorkerError if the child died, or what it raised cannot be sent.
        """
        try:
            self._busy = True
            with self._sending:
                self._pipe.send((request,))
            answer = self._pipe.recv()
            self._busy = False
        except (EOFError, OSError) as exc:
            self.process.join(GRACE)
            code = self.process.exitcode
            raise WorkerError(
                f"a process of the loader ({self.process.pid}) ended, with exit code {code}, while it made a batch"
                + ("\n  A negative code is the signal that ended it: -9 comes of too little memory" if code else "")
            ) from exc
        if isinstance(answer, _Raised):
            _raise(answer, self.process.pid)
        if isinstance(answer, str):
            return END
        view = self._region.view(answer.nbytes)
        fields = [
            HostField(name, np.ndarray(dims, NUMPY[dtype], view, offset), dtype, lod)
            for name, dims, dtype, lod, offset in answer.fields
        ]
        return HostBatch(fields, answer.size)

    def _stays(self) -> bool:
        """Whether the child waits for a request, and may wait for the next epoch."""
        return self._idle is not None and not (self._busy or self._told or self._stopped)

    def begin(self, epoch: int, first: int) -> bool:
        """Let a child that has waited produce an epoch; False: it has ended meanwhile, and was let go of."""
        self._resting = False
        try:
            if self._idle is not None and self.process.is_alive():
                self._pipe.send(_Epoch(epoch, first))
                return True
        except OSError:
            pass
        self.end()
        return False

    def tell(self) -> None:
        """Tell the child to end when it has made what it is at."""
        if self._stays():
            return
        if self._told or not self._sending.acquire(timeout=GRACE):
            return
        self._told = True
        try:
            with contextlib.suppress(OSError, ValueError):
                self._pipe.send(None)
        finally:
            self._sending.release()

    def kill(self) -> None:
        self._idle = None
        if not self._stopped:
            self.process.kill()

    def abandon(self) -> None:
        """End the child at once, and let go of what was shared with it: nobody has it any more."""
        self.kill()
        self._stopped = True
        self._pipe.close()
        self._region.close()

    def stop(self) -> None:
        """End the child, whatever it does; its worker's thread sees the end of the pipe."""
        if not self._stays():
            self._stop()

    def _stop(self) -> None:
        if self._stopped:
            return
        self._stopped = True
        self.tell()
        self.process.join(GRACE)
        if self.process.is_alive():
            self.process.terminate()
            self.process.join(GRACE)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()

    def close(self) -> None:
        """End the child and let go of what was shared with it; or let it wait for the next epoch."""
        if self._stays() and self.process.is_alive():
            if not self._resting:
                self._resting = True
                with contextlib.suppress(OSError, ValueError):
                    self._pipe.send(_Epoch(None, 0))
                assert self._idle is not None
                self._idle.append(self)
            return
        self.end()

    def end(self) -> None:
        self._idle = None
        self._stop()
        self._pipe.close()
        self._region.close()


def _raise(answer: _Raised, pid: int | None) -> None:
    cause = WorkerError(f"in process {pid} of the loader:\n{answer.text}")
    if answer.pickled is None:
        raise cause
    error = pickle.loads(answer.pickled)
    raise error from cause


def _serve(pipe: Any, producer: Producer, region: SharedRegion, inherited: Sequence[Any]) -> None:
    """The child: answer until told to end, or until the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent's to handle: it ends us
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for other in inherited:
        other.close()
    try:
        with contextlib.suppress(EOFError, OSError):
            while (asked := pipe.recv()) is not None:
                if not isinstance(asked, _Epoch):
                    pipe.send(_answer(asked[0], producer, region))
                elif asked.number is None:
                    producer.close()
                else:
                    producer = producer_of(producer.settings, asked.number)
                    producer.first = asked.first
    finally:
        producer.close()


def _answer(request: Any, producer: Producer, region: SharedRegion) -> Any:
    try:
        if producer.local:
            request = producer.request()
            if isinstance(request, str) and request == END:
                return END
        batch = producer.produce(request)
        layout, offset = [], 0
        for field in batch.fields:
            layout.append((field.name, field.array.shape, field.dtype, field.lod, offset))
            offset += -(-field.array.nbytes // ALIGNMENT) * ALIGNMENT
        view = region.view(max(offset, 1), grow=True)
        for field, (_, dims, dtype, _, begin) in zip(batch.fields, layout, strict=True):
            np.copyto(np.ndarray(dims, NUMPY[dtype], view, begin), field.array, casting="equiv")
        return _Layout(layout, batch.size, max(offset, 1))
    except BaseException as exc:
        return _Raised(_pickled(exc), "".join(traceback.format_exception(exc)))


def _pickled(error: BaseException) -> bytes | None:
    """The exception as bytes that give an equal one; None: there are none."""
    try:
        data = pickle.dumps(error)
        if type(pickle.loads(data)) is type(error):
            return data
    except Exception:  # whatever a user's exception raises from __reduce__ or __init__: its text is sent instead
        return None
    return None
