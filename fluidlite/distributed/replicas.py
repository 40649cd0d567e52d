"""Replicas: one program on several places of one process, a thread for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np

from fluidlite.base.arguments import listed, mapped
from fluidlite.base.errors import CollectiveError, FeedError, FetchError
from fluidlite.distributed.groups import Group, member_runs, set_thread_ring, share_devices
from fluidlite.distributed.parameters import state_names
from fluidlite.distributed.threads import Meeting
from fluidlite.platform.device_registry import devices
from fluidlite.platform.place import Place
from fluidlite.program.program import Program
from fluidlite.program.scope import Scope
from fluidlite.program.variable import Variable
from fluidlite.tensor.lod import joined_lod
from fluidlite.tensor.tensor import Tensor
from fluidlite.tensor.tensor_array import TensorArray

_Version = tuple[Tensor, int, object]
"""A tensor, its version, and what stands for its bytes: None where somebody may write them unheard."""


class Replicas:
    """The members of a data parallel program in one process.

    The first runs on the caller's scope; the others keep copies of its values, which stay equal, since all make the
    same updates. Whatever else writes to the scope (a startup program, loading) is copied to them again, and at each
    run what somebody may write unheard through an array. The caller's thread runs none of them: it holds no queue while
    it waits, so that none waits for it.

    ``executor``: whose settings the members' executors get.
    ``program_of``: the program that a member of a group runs.
    """

    def __init__(self, executor: Any, places: Sequence[Place], program_of: Callable[[Group], Program]) -> None:
        self.places = list(places)
        self._program_of = program_of
        self._executors = [executor.sibling(place) for place in self.places]
        self._scopes: list[Scope] = []
        self._owner: Scope | None = None
        self._versions: dict[str, _Version] = {}
        self._threads = [ThreadPoolExecutor(1, f"fluidlite-replica-{i}") for i in range(len(self.places))]
        self._meeting = self._meet()

    def _meet(self) -> Meeting:
        meeting = Meeting(len(self.places))
        several = zip(self._threads, meeting.members, map(devices.unit, self.places), strict=True)
        for told in [thread.submit(share_devices, member, unit) for thread, member, unit in several]:
            told.result()
        return meeting

    def run(
        self, feed: Any, fetch_list: Any, scope: Scope, return_numpy: bool = True, return_merged: bool = True
    ) -> list[Any]:
        """Run once on all places; return what was fetched, the places' values behind each other or in a list."""
        feeds = self._split_feed(feed)
        given = fetch_list if fetch_list is not None else ()
        fetches = listed("fetch_list", given, "variables or names", FetchError, one=(str, Variable))
        members = self._meeting.members
        programs = [self._program_of(member) for member in members]
        self._share(programs[0], scope)
        for other, made in zip(self._scopes, programs[1:], strict=True):  # what was loaded says how often
            other.update_random_runs(member_runs(scope, programs[0].random_seed, made.random_seed))
        scopes = [scope, *self._scopes]

        def one(i: int) -> Any:
            set_thread_ring(0, members[i])
            try:
                return self._executors[i].run(
                    programs[i], feeds[i], fetches, scope=scopes[i], return_numpy=return_numpy
                )
            except BaseException as exc:
                self._meeting.fail(i, exc)
                raise
            finally:
                set_thread_ring(0, None)

        futures = [thread.submit(one, i) for i, thread in enumerate(self._threads)]
        found: list[Any] = []
        errors: list[BaseException] = []
        for future in futures:
            try:
                found.append(future.result())
            except Exception as exc:
                errors.append(exc)
        if errors:
            self._meeting, self._owner = self._meet(), None  # what the members hold may differ now
            raise next((exc for exc in errors if not isinstance(exc, CollectiveError)), errors[0])
        self._versions = self._seen(programs[0], scope)
        if not return_merged:
            return [list(parts) for parts in zip(*found, strict=True)]
        names = [item if isinstance(item, str) else item.name for item in fetches]
        return [joined(name, parts) for name, parts in zip(names, zip(*found, strict=True), strict=True)]

    def _split_feed(self, feed: Any) -> list[Mapping[str, Any]]:
        """The feed of each place: its rows in order, or, of a list, each its own."""
        count = len(self.places)
        if isinstance(feed, (list, tuple)):
            if len(feed) != count:
                raise FeedError(f"the feed is a list of {len(feed)}; expected one mapping for each of {count} places")
            return list(feed)
        parts: list[dict[str, Any]] = [{} for _ in range(count)]
        for name, value in mapped("the feed", feed or {}, "a mapping of names to arrays", FeedError).items():
            for part, rows in zip(parts, split(name, value, count), strict=True):
                part[name] = rows
        return list(parts)

    def _seen(self, program: Program, scope: Scope) -> dict[str, _Version]:
        found: dict[str, _Version] = {}
        for name in state_names(program, scope):
            variable = scope.find_var(name)
            assert variable is not None and variable.tensor.allocation is not None
            found[name] = variable.tensor, variable.tensor.version, variable.tensor.allocation.contents
        return found

    def _share(self, program: Program, scope: Scope) -> None:
        """Copy to the other members what somebody else wrote into the scope."""
        now = self._seen(program, scope)
        if self._owner is not scope:
            self._owner, self._versions = scope, {}
            self._scopes = [Scope() for _ in self.places[1:]]
        for name in [name for name, seen in now.items() if seen[2] is None or self._versions.get(name) != seen]:
            variable = scope.find_var(name)
            assert variable is not None
            value = variable.tensor.numpy().copy()
            for i, other in enumerate(self._scopes, 1):  # memory of their own queues: a run waits for no other's then
                self._threads[i].submit(other.var(name).get_tensor().set, value, self.places[i]).result()


def split(name: str, value: Any, count: int) -> list[Any]:
    """What each of ``count`` members is fed of a value: equally many rows or, where it has LoD, sequences."""
    lod = value.lod() if isinstance(value, Tensor) else []
    if isinstance(value, Tensor):
        value = value.numpy()  # a queue of the members would have to wait for the one that it lies on
    try:
        value = np.asarray(value)
    except ValueError as exc:
        raise FeedError(f"feed {name!r} is no array: {exc}") from None
    rows = len(lod[0]) - 1 if lod else value.shape[0] if value.ndim else 0
    if rows < count:
        raise FeedError(f"feed {name!r} has {rows} {'sequences' if lod else 'rows'} for {count} places; each needs one")
    bounds = [rows * i // count for i in range(count + 1)]
    return [_part(value, lod, begin, end) for begin, end in pairwise(bounds)]


def _part(value: np.ndarray[Any, Any], lod: Sequence[Sequence[int]], begin: int, end: int) -> Any:
    """Some rows, or some sequences of the first level with all that they hold."""
    levels = []
    for offsets in lod:
        levels.append([at - offsets[begin] for at in offsets[begin : end + 1]])
        begin, end = offsets[begin], offsets[end]
    part = value[begin:end]
    return Tensor().set(part, None, levels) if levels else part


def joined(name: str, parts: Sequence[Any]) -> Any:
    """What members fetched, behind each other; of tensors a tensor, with the sequences of all.

    Raises FetchError: they are tensor arrays, or have different numbers of LoD levels.
    """
    if isinstance(parts[0], (list, TensorArray)):
        raise FetchError(
            f"variable {name!r} is a tensor array, whose elements on {len(parts)} places are not joined"
            "\n  Do: fetch layers.tensor_array_to_tensor of it"
        )
    found = np.concatenate([np.atleast_1d(np.asarray(part)) for part in parts])
    if not isinstance(parts[0], Tensor):
        return found
    levels = {len(part.lod()) for part in parts}
    if len(levels) > 1:
        raise FetchError(f"variable {name!r} has {sorted(levels)} LoD levels on different places; expected one number")
    return Tensor().set(found, None, joined_lod(part.lod() for part in parts))
