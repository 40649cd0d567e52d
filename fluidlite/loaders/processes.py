"""Producers in forked processes: requests go through a pipe, batches come back through shared memory."""

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
GRACE_SECONDS = 0.5
"""Seconds that a process has to end when requested; then it is terminated, then killed."""


class SharedRegion:
    """Anonymous memory that a process shares with its child; the child enlarges it as needed."""

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
        """The first ``nbytes``; with ``grow`` the region is enlarged, else the other process has done so."""
        if self._map is None or self._size < nbytes:
            if grow:
                nbytes = max(nbytes, 2 * self._size)
                os.ftruncate(self._file, nbytes)
            self._size = max(os.fstat(self._file).st_size, 1)
            self._map = mmap.mmap(self._file, self._size)  # an earlier mapping is unmapped with its last view
        return memoryview(self._map)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file, self._map = -1, None


class _BatchLayout(NamedTuple):
    """An answer: the layout of a batch's fields in the region."""

    fields: list[tuple[str, tuple[int, ...], str, Lod, int]]
    size: int
    nbytes: int


class _ErrorAnswer(NamedTuple):
    """An answer: an exception, pickled if possible, and its traceback as text."""

    pickled: bytes | None
    text: str


class _EpochMessage(NamedTuple):
    """A message to a persistent child: a new epoch and its first batch; None: the current epoch has ended."""

    number: int | None
    first: int


class ProcessProducer(Producer):
    """Runs a producer in a child process.

    ``producer``: the child's producer. If its requests are local, the child also creates these.
    ``siblings``: children that were started before; the new child closes their pipes.
    ``idle``: the list of persistent children that wait for the next epoch; None: the child ends with its epoch.
    """

    def __init__(
        self,
        producer: Producer,
        siblings: Sequence[ProcessProducer] = (),
        idle: list[ProcessProducer] | None = None,
    ) -> None:
        if "fork" not in multiprocessing.get_all_start_methods():
            raise LoaderError("processes=True needs fork, which this system does not have\n  Do: use threads")
        context = multiprocessing.get_context("fork")
        self._region = SharedRegion()
        self._pipe, child_pipe = context.Pipe()
        self._sending = new_lock()
        self._end_requested = self._stopped = self._is_idle = False
        self._is_busy = False
        self._idle = idle
        inherited = [self._pipe, *(sibling._pipe for sibling in siblings)]
        self.process = context.Process(
            target=_serve, args=(child_pipe, producer, self._region, inherited), name="fluidlite-loader", daemon=True
        )
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # base.fork handles locks
                self.process.start()
        except BaseException:
            self._pipe.close()
            self._region.close()
            raise
        finally:
            child_pipe.close()

    def request(self) -> Any:
        """Return None: the child creates its requests itself."""
        return None

    def produce(self, request: Any) -> Any:
        """Let the child assemble a batch, whose arrays are valid until the next call, or return END.

        Raises the child's exception, with its traceback as the cause.
        Raises WorkerError if the child died, or its exception cannot be pickled.
        """
        try:
            self._is_busy = True
            with self._sending:
                self._pipe.send((request,))
            answer = self._pipe.recv()
            self._is_busy = False
        except (EOFError, OSError) as exc:
            self.process.join(GRACE_SECONDS)
            code = self.process.exitcode
            raise WorkerError(
                f"a process of the loader ({self.process.pid}) ended, with exit code {code}, while it made a batch"
                + ("\n  A negative code is the signal that ended it: -9 comes of too little memory" if code else "")
            ) from exc
        if isinstance(answer, _ErrorAnswer):
            _raise(answer, self.process.pid)
        if isinstance(answer, str):
            return END
        view = self._region.view(answer.nbytes)
        fields = [
            HostField(name, np.ndarray(dims, NUMPY[dtype], view, offset), dtype, lod)
            for name, dims, dtype, lod, offset in answer.fields
        ]
        return HostBatch(fields, answer.size)

    def _can_wait(self) -> bool:
        """Whether the child is persistent and waits for a request, so that it can wait for the next epoch."""
        return self._idle is not None and not (self._is_busy or self._end_requested or self._stopped)

    def begin(self, epoch: int, first: int) -> bool:
        """Start an epoch in an idle child; False: the child has ended meanwhile, and was released."""
        self._is_idle = False
        try:
            if self._idle is not None and self.process.is_alive():
                self._pipe.send(_EpochMessage(epoch, first))
                return True
        except OSError:
            pass
        self.end()
        return False

    def request_end(self) -> None:
        """Request the child to end after its current batch."""
        if self._can_wait():
            return
        if self._end_requested or not self._sending.acquire(timeout=GRACE_SECONDS):
            return
        self._end_requested = True
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
        """Kill the child and release the shared resources, without waiting."""
        self.kill()
        self._stopped = True
        self._pipe.close()
        self._region.close()

    def stop(self) -> None:
        """End the child; its worker's thread then sees the end of the pipe."""
        if not self._can_wait():
            self._stop()

    def _stop(self) -> None:
        if self._stopped:
            return
        self._stopped = True
        self.request_end()
        self.process.join(GRACE_SECONDS)
        if self.process.is_alive():
            self.process.terminate()
            self.process.join(GRACE_SECONDS)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()

    def close(self) -> None:
        """Let a persistent child wait for the next epoch; end any other, and release the shared resources."""
        if self._can_wait() and self.process.is_alive():
            if not self._is_idle:
                self._is_idle = True
                with contextlib.suppress(OSError, ValueError):
                    self._pipe.send(_EpochMessage(None, 0))
                assert self._idle is not None
                self._idle.append(self)
            return
        self.end()

    def end(self) -> None:
        self._idle = None
        self._stop()
        self._pipe.close()
        self._region.close()


def _raise(answer: _ErrorAnswer, pid: int | None) -> None:
    cause = WorkerError(f"in process {pid} of the loader:\n{answer.text}")
    if answer.pickled is None:
        raise cause
    error = pickle.loads(answer.pickled)
    raise error from cause


def _serve(pipe: Any, producer: Producer, region: SharedRegion, inherited: Sequence[Any]) -> None:
    """The child's main function: answer requests until it is requested to end, or the parent has died."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles it and ends its children
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for other in inherited:
        other.close()
    try:
        with contextlib.suppress(EOFError, OSError):
            while (message := pipe.recv()) is not None:
                if not isinstance(message, _EpochMessage):
                    pipe.send(_answer(message[0], producer, region))
                elif message.number is None:
                    producer.close()
                else:
                    producer = producer_of(producer.settings, message.number)
                    producer.first = message.first
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
        return _BatchLayout(layout, batch.size, max(offset, 1))
    except BaseException as exc:
        return _ErrorAnswer(_pickled(exc), "".join(traceback.format_exception(exc)))


def _pickled(error: BaseException) -> bytes | None:
    """Pickle an exception; None if it cannot be restored."""
    try:
        data = pickle.dumps(error)
        if type(pickle.loads(data)) is type(error):
            return data
    except Exception:  # user code: __reduce__ or __init__ of the exception; its text is sent instead
        return None
    return None
