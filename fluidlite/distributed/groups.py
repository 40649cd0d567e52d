"""Groups: the processes or threads of a collective operation, by the number of their ring."""

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
    """A collective operation in progress; ``wait`` returns when its array is complete, or raises."""

    def wait(self) -> None:
        """Block until the array holds the result.

        Raises CollectiveError if another member failed, left, or did not arrive in time.
        """
        ...


class Group(Protocol):
    """Members that call the same operations in the same order.

    Arrays are contiguous host arrays. ``start_*`` work in place, and the array must not be used until the work's
    ``wait`` has returned; the other methods return new arrays.

    ``rank``, ``size``: the number of this member, and the number of members.
    ``reduces_in_place``: host arrays are best reduced in place by the computing thread, since no processor is free.
    ``has_own_devices``: each member computes on a device of its own, all of one kind, so that a library may copy arrays
    from device to device. The value is the same for all members (:func:`share_devices`).
    """

    rank: int
    size: int
    reduces_in_place: bool
    has_own_devices: bool = False

    def start_all_reduce(self, array: Array, reduction: str, after: Event | None = None) -> Work:
        """Start to replace the array by the reduction over all members, after the event ``after``."""
        ...

    def reduce_in_place(self, arrays: Sequence[Array], reduction: str) -> None:
        """Replace arrays of one dtype by the reduction over all members; only if ``reduces_in_place``."""
        ...

    def start_broadcast(self, array: Array, root: int) -> Work:
        """Start to replace the array by that of member ``root``."""
        ...

    def all_reduce(self, array: Array, reduction: str = "sum") -> Array:
        """The reduction over all members."""
        result = np.array(array, order="C")
        self.start_all_reduce(result, reduction).wait()
        return result

    def broadcast(self, array: Array, root: int = 0) -> Array:
        """The array of member ``root``."""
        result = np.array(array, order="C")
        self.start_broadcast(result, root).wait()
        return result

    def all_gather(self, array: Array) -> Array:
        """The arrays of all members, stacked along a new first dim."""
        ...

    def reduce_scatter(self, array: Array, reduction: str = "sum") -> Array:
        """The part ``rank`` of ``size`` equal parts of the reduction along the first dim."""
        ...

    def barrier(self) -> None:
        """Return when all members have called it."""
        ...


class Done:
    """Completed work."""

    def wait(self) -> None:
        """Return at once."""


class SingleGroup(Group):
    """A group of one member: every operation is the identity."""

    rank, size, reduces_in_place = 0, 1, False

    def start_all_reduce(self, array: Array, reduction: str, after: Event | None = None) -> Work:
        return Done()

    def reduce_in_place(self, arrays: Sequence[Array], reduction: str) -> None:
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
"""``has_own_devices`` of the last call of :func:`share_devices`: kernel selection depends on it."""


def single() -> Group:
    return _SINGLE


def set_ring(ring: int, group: Group | None) -> None:
    """Set the group of a ring's operators; None: a group of this process alone."""
    if group is None:
        _rings.pop(ring, None)
    else:
        _rings[ring] = group


def ring_group(ring: int) -> Group:
    """The group of a ring: the thread's, else the process's, else a group of this process alone."""
    thread_rings: dict[int, Group] = getattr(_local, "rings", {})
    return thread_rings.get(ring) or _rings.get(ring) or _SINGLE


def set_thread_ring(ring: int, group: Group | None) -> None:
    """Set the group of a ring's operators in this thread."""
    thread_rings: dict[int, Group] = _local.__dict__.setdefault("rings", {})
    if group is None:
        thread_rings.pop(ring, None)
    else:
        thread_rings[ring] = group


def share_devices(group: Group, unit: Unit) -> None:
    """Exchange the members' devices, and set ``has_own_devices``: whether each has a device of its own.

    It is a collective operation: every member calls it. Kernels are selected again if the value differs from that of
    the last call.
    """
    global _apart
    if group.size == 1:
        return
    identity = unit.info.identity
    words = (unit.place.kind, f"{socket.gethostname()} {identity}" if identity else "")
    own = np.frombuffer(b"".join(blake2b(word.encode(), digest_size=_DIGEST).digest() for word in words), np.uint8)
    kinds, identities = np.split(group.all_gather(own), 2, axis=1)
    unknown = np.frombuffer(blake2b(digest_size=_DIGEST).digest(), np.uint8)
    group.has_own_devices = bool(
        (kinds == kinds[0]).all()
        and (identities != unknown).any(axis=1).all()
        and len(np.unique(identities, axis=0)) == group.size
    )
    if group.has_own_devices != _apart:
        _apart = group.has_own_devices
        kernels.invalidate_choices()


def world(place: PlaceLike | None = None) -> Group:
    """The group of ring 0: all processes that ``mpirun`` started, or this process alone.

    ``place``: the place of this member. If every member passes it in the same call, and each has a device of its own,
    arrays are copied from device to device if a library can, and otherwise through the host.
    Raises CollectiveError or MissingExtraError if mpirun started several processes that cannot communicate.
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
    """A member's counts of draws from its own seed: those of the first member from the program's seed, in a scope."""
    return {(stream, own): count for (stream, each), count in scope.random_runs().items() if each == seed}


def member_seed(seed: int, group: Group) -> int:
    """The seed of a group's member: each draws other numbers. 0 means a random seed, so that all differ."""
    if group.rank and not seed:
        return int.from_bytes(os.urandom(4)) | 1
    return seed + _SEED_STRIDE * group.rank


def check_reduction(reduction: str) -> str:
    """Return a reduction's name; raise CollectiveError if it is unknown."""
    if reduction not in REDUCTIONS:
        raise CollectiveError(f"the reduction is {reduction!r}; expected one of {', '.join(REDUCTIONS)}")
    return reduction
