"""Groups: the processes, or threads, that do a collective operation together, by the number of their ring."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, Protocol

import numpy as np

from fluidlite.base.errors import CollectiveError
from fluidlite.platform.device_context import Event
from fluidlite.platform.device_registry import Unit, devices
from fluidlite.platform.place import PlaceLike
from fluidlite.program.kernel_registry import kernels
from fluidlite.program.scope import Scope

Array = np.ndarray[Any, Any]

REDUCTIONS: dict[str, Any] = {"sum": np.add, "max": np.maximum, "min": np.minimum, "prod": np.multiply}

_SEED_STRIDE = 1_000_003
_DIGEST = 16


class Work(Protocol):
    """A collective operation under way; ``wait`` returns when its array is finished, or raises."""

    def wait(self) -> None:
        """Block until the array holds the result.

        Raises CollectiveError if another member failed, left, or did not come in time.
        """
        ...


class Group(Protocol):
    """Members that call the same operations in the same order.

    Arrays are of the host, contiguous. ``start_*`` work on the array in place, and it must be left alone until the
    work's ``wait`` has returned; the others return new arrays.

    ``rank``, ``size``: which member this is, and how many there are.
    ``reduces_at_once``: arrays of the host are best reduced in their place, by the thread that computes: no other has a
    processor.
    ``devices_apart``: each member computes on a device of its own, all of one kind, so that a library may pass arrays
    from device to device. All members think the same: they have told each other (:func:`share_devices`).
    """

    rank: int
    size: int
    reduces_at_once: bool
    devices_apart: bool = False

    def start_all_reduce(self, array: Array, reduction: str, after: Event | None = None) -> Work:
        """Begin to replace the array by the reduction over all members, once ``after`` has happened."""
        ...

    def reduce_now(self, arrays: Sequence[Array], reduction: str) -> None:
        """Replace arrays of one dtype by the reduction over all members; only where ``reduces_at_once``."""
        ...

    def start_broadcast(self, array: Array, root: int) -> Work:
        """Begin to replace the array by that of member ``root``."""
        ...

    def all_reduce(self, array: Array, reduction: str = "sum") -> Array:
        """The reduction over all members."""
        found = np.array(array, order="C")
        self.start_all_reduce(found, reduction).wait()
        return found

    def broadcast(self, array: Array, root: int = 0) -> Array:
        """The array of member ``root``."""
        found = np.array(array, order="C")
        self.start_broadcast(found, root).wait()
        return found

    def all_gather(self, array: Array) -> Array:
        """The arrays of all members, behind each other along a new first dim."""
        ...

    def reduce_scatter(self, array: Array, reduction: str = "sum") -> Array:
        """The ``rank``-th of ``size`` equal parts of the reduction along the first dim."""
        ...

    def barrier(self) -> None:
        """Return when all have come."""
        ...


class Done:
    """Work that is finished."""

    def wait(self) -> None:
        """Return at once."""


class SingleGroup(Group):
    """One member alone: every operation is the identity."""

    rank, size, reduces_at_once = 0, 1, False

    def start_all_reduce(self, array: Array, reduction: str, after: Event | None = None) -> Work:
        return Done()

    def reduce_now(self, arrays: Sequence[Array], reduction: str) -> None:
        """Leave the arrays as they are."""

    def start_broadcast(self, array: Array, root: int) -> Work:
        return Done()

    def all_gather(self, array: Array) -> Array:
        return array[None].copy()

    def reduce_scatter(self, array: Array, reduction: str = "sum") -> Array:
        return array.copy()

    def barrier(self) -> None:
        """Return at once."""


_SINGLE = SingleGroup()
_local = threading.local()
_rings: dict[int, Group] = {}
_apart = False
"""Whether members of the group that was last asked compute on devices of their own: choices of kernels depend on it."""


def single() -> Group:
    return _SINGLE


def set_ring(ring: int, group: Group | None) -> None:
    """Let operators of a ring use a group; None: this process alone again."""
    if group is None:
        _rings.pop(ring, None)
    else:
        _rings[ring] = group


def ring_group(ring: int) -> Group:
    """The group of a ring: this thread's, or the process's, or else this process alone."""
    mine: dict[int, Group] = getattr(_local, "rings", {})
    return mine.get(ring) or _rings.get(ring) or _SINGLE


def set_thread_ring(ring: int, group: Group | None) -> None:
    """Let operators of a ring that this thread runs use a group."""
    mine: dict[int, Group] = _local.__dict__.setdefault("rings", {})
    if group is None:
        mine.pop(ring, None)
    else:
        mine[ring] = group


def share_devices(group: Group, unit: Unit) -> None:
    """Tell the other members on which device this one computes, and learn whether all have devices of their own.

    Every member calls it at the same time, as it would an operation of the group. Kernels are chosen anew if the answer
    is not that of the group before.
    """
    global _apart
    if group.size == 1:
        return
    identity = unit.info.identity
    words = (unit.place.kind, f"{socket.gethostname()} {identity}" if identity else "")
    own = np.frombuffer(b"".join(blake2b(word.encode(), digest_size=_DIGEST).digest() for word in words), np.uint8)
    kinds, found = np.split(group.all_gather(own), 2, axis=1)
    unknown = np.frombuffer(blake2b(digest_size=_DIGEST).digest(), np.uint8)
    group.devices_apart = bool(
        (kinds == kinds[0]).all()
        and (found != unknown).any(axis=1).all()
        and len(np.unique(found, axis=0)) == group.size
    )
    if group.devices_apart != _apart:
        _apart = group.devices_apart
        kernels.choose_anew()


def world(place: PlaceLike | None = None) -> Group:
    """All processes that ``mpirun`` started, as ring 0; this one alone if none did.

    ``place``: where this member computes. If every member says it in the same call, and each has a device of its own,
    arrays are passed from device to device where a library can, and otherwise through the host.
    Raises CollectiveError, MissingExtraError: mpirun started several, and they cannot speak to each other.
    """
    from fluidlite.distributed.launch import started_by_mpi

    group = ring_group(0)
    if group is _SINGLE and started_by_mpi():
        from fluidlite.distributed.mpi import mpi_world

        group = mpi_world()
        set_ring(0, group)
    if place is not None:
        share_devices(group, devices.unit(place))
    return group


def member_runs(scope: Scope, seed: int, own: int) -> dict[tuple[int, int], int]:
    """How often a member has drawn from its own seed: as often as the first from the program's, in a scope."""
    return {(stream, own): count for (stream, each), count in scope.random_runs().items() if each == seed}


def member_seed(seed: int, group: Group) -> int:
    """The seed of a member of a group, each of which drops other elements; 0 is drawn, so that all are different."""
    if group.rank and not seed:
        return int.from_bytes(os.urandom(4)) | 1
    return seed + _SEED_STRIDE * group.rank


def check_reduction(reduction: str) -> str:
    """Return a reduction's name, or raise."""
    if reduction not in REDUCTIONS:
        raise CollectiveError(f"the reduction is {reduction!r}; expected one of {', '.join(REDUCTIONS)}")
    return reduction
