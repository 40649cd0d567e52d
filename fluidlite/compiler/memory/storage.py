"""DeviceBufferStorage, the arena of the executables of a context, and DeviceTensor, a tensor at an offset in it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import numpy as np

from fluidlite.base.invalidation import cache_version
from fluidlite.base.weak_objects import WeakObjects
from fluidlite.memory import memory_of
from fluidlite.memory.allocation import Allocation
from fluidlite.memory.arena import Arena
from fluidlite.memory.bump import BumpAllocation
from fluidlite.platform.context import Context
from fluidlite.tensor.tensor import Tensor
from fluidlite.tensor.tensor_spec import Spec

MIN_TRIMMED_BYTES = 1 << 20
"""Minimum bytes of an arena that is returned to the device when it is replaced; smaller ones go to the pool."""


class User(Protocol):
    """An object that is linked to a storage."""

    def detach(self) -> None:
        """Drop all references to its memory, which is about to be freed."""
        ...


class DeviceBufferStorage:
    """One arena, which all executables of a context share for their temporaries; one of them runs at a time.

    Attributes
    ----------
    context : Context
        The context that uses it.
    nbytes : int
        Its size; 0: not allocated.
    needed : int
        Bytes that the executable needs that is being linked.
    generation : int
        A counter of releases; executables of an older generation link again.
    busy : bool
        Whether a run is in progress that uses it.
    arena : Arena or None
        The arena that provides its memory; None: the allocator of the place.
    users : set of User
        The executables that are linked to it.
    """

    def __init__(self, context: Context) -> None:
        self.context = context
        self.nbytes = 0
        self.needed = 0
        self.generation = 0
        self.busy = False
        self.allocation: Allocation | None = None
        self.arena: Arena | None = None
        self.users: WeakObjects[User] = WeakObjects()

    def fit(self, nbytes: int, exactly: bool = False) -> None:
        """Allocate at least ``nbytes``, or (``exactly``) no more than that.

        Raises
        ------
        OutOfMemoryError
            The storage is then empty.
        """
        if self.allocation is not None and (nbytes == self.nbytes or (nbytes < self.nbytes and not exactly)):
            return
        trims = self.nbytes >= MIN_TRIMMED_BYTES
        self.release()
        memory = memory_of(self.context.place, self.context)
        if self.arena is not None:
            self.allocation = self.arena.alloc(nbytes, self.context)
        else:
            if trims:
                memory.trim()
            self.allocation = memory.alloc_arena(nbytes, self.context)
        if isinstance(self.allocation, BumpAllocation):
            self.allocation.bump.holders.add(self)
        self.nbytes = nbytes

    def transform_allocate(self) -> None:
        """Allocate ``needed`` bytes (nGraph's step of allocation).

        Raises
        ------
        OutOfMemoryError
            The storage is then empty.
        """
        self.fit(self.needed)

    def release(self) -> None:
        """Free the memory and detach all users."""
        self.generation += 1
        cache_version.invalidate()
        self.nbytes = 0
        for user in list(self.users):
            user.detach()
        if self.allocation is not None and self.allocation.block is not None and self.allocation.owned:
            memory_of(self.context.place, self.context).free(self.allocation)
        self.allocation = None

    def __repr__(self) -> str:
        return f"DeviceBufferStorage({self.nbytes} bytes on {self.context.place})"


def allocate_buffers(buffers: Iterable[DeviceBufferStorage]) -> None:
    for buffer in buffers:
        buffer.transform_allocate()


class DeviceTensor(Tensor):
    """A tensor at a static offset in a storage. Reads by the host return copies."""

    __slots__ = ("storage",)
    storage: DeviceBufferStorage

    @staticmethod
    def at(storage: DeviceBufferStorage, spec: Spec, offset: int) -> DeviceTensor:
        """Return a tensor with metadata ``spec`` at ``offset`` bytes of the storage."""
        self = DeviceTensor()
        self.spec, self.place, self.allocation = spec, storage.context.place, storage.allocation
        self._byte_offset = offset
        self.storage = storage
        return self

    def numpy(self) -> np.ndarray[Any, Any]:
        """Return a copy of the values on the host: other values reuse the memory."""
        return np.array(super().numpy())
