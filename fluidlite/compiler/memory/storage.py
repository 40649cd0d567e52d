"""DeviceBufferStorage, the memory that a computation has on a place, and DeviceTensor, a view in it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import numpy as np

from fluidlite.base.invalidation import cache_version
from fluidlite.base.weak_objects import WeakObjects
from fluidlite.memory import memory_of
from fluidlite.memory.allocation import Allocation
from fluidlite.memory.arena import Arena
from fluidlite.memory.bump import Piece
from fluidlite.platform.context import Context
from fluidlite.tensor.tensor import Tensor
from fluidlite.tensor.tensor_spec import Spec

TRIM_FROM = 1 << 20
"""Bytes of an arena from which the one that it takes the place of goes back to the device, not to the pool."""


class User(Protocol):
    """What is bound to a storage."""

    def detach(self) -> None:
        """Let go of it: its memory goes back."""
        ...


class DeviceBufferStorage:
    """One arena: all programs that are bound to it lay their temporaries there, one at a time.

    Attributes
    ----------
    context : Context
        Whose work uses it.
    nbytes : int
        Its size; 0: nothing is allocated yet.
    needed : int
        What the program that is being bound needs.
    generation : int
        Rises when the memory becomes another: what is bound to the old one binds again.
    busy : bool
        A run is under way that began here.
    arena : Arena or None
        Where its memory comes from; None: the place.
    users : set of User
        What is bound to it now.
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
        """Have room for ``nbytes``, or (``exactly``) for no more.

        Raises
        ------
        OutOfMemoryError
            Then it is empty.
        """
        if self.allocation is not None and (nbytes == self.nbytes or (nbytes < self.nbytes and not exactly)):
            return
        large = self.nbytes >= TRIM_FROM
        self.release()
        memory = memory_of(self.context.place, self.context)
        if self.arena is not None:
            self.allocation = self.arena.alloc(nbytes, self.context)
        else:
            if large:
                memory.trim()
            self.allocation = memory.alloc_arena(nbytes, self.context)
        if isinstance(self.allocation, Piece):
            self.allocation.bump.holders.add(self)
        self.nbytes = nbytes

    def transform_allocate(self) -> None:
        """Have room for what is needed (nGraph's step of allocation).

        Raises
        ------
        OutOfMemoryError
            Then it is empty.
        """
        self.fit(self.needed)

    def release(self) -> None:
        """Give the memory back: nothing that was bound to it can be used any more."""
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
    """A tensor in a storage, at a fixed offset. What it gives to the host are copies."""

    __slots__ = ("storage",)
    storage: DeviceBufferStorage

    @staticmethod
    def at(storage: DeviceBufferStorage, spec: Spec, offset: int) -> DeviceTensor:
        """Make the tensor of that metadata at ``offset`` bytes of the storage."""
        self = DeviceTensor()
        self.spec, self.place, self.allocation = spec, storage.context.place, storage.allocation
        self._byte_offset = offset
        self.storage = storage
        return self

    def numpy(self) -> np.ndarray[Any, Any]:
        """A copy of the values on the host: the memory serves others soon."""
        return np.array(super().numpy())
