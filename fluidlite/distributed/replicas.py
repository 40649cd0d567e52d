"""Replicas: data parallel runs of one program on several places of one process, each on its own thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np

from fluidlite.base.arguments import check_list, check_mapping
from fluidlite.base.errors import CollectiveError, FeedError, FetchError
from fluidlite.base.fork import new_rlock
from fluidlite.distributed.groups import Group, member_runs, set_thread_ring, share_devices
from fluidlite.distributed.parameters import state_names
from fluidlite.distributed.threads import Rendezvous
from fluidlite.executor.feeds import feed_tensors
from fluidlite.platform.context_pool import get_context
from fluidlite.platform.device_registry import devices
from fluidlite.platform.place import Place
from fluidlite.program.block import Block
from fluidlite.program.program import Program
from fluidlite.program.reader import fed_by_readers
from fluidlite.program.scope import Scope
from fluidlite.program.variable import Variable
from fluidlite.tensor.lod import concatenated_lod
from fluidlite.tensor.tensor import Tensor
from fluidlite.tensor.tensor_array import TensorArray

_Version = tuple[Tensor, int, object]
"""A tensor, its version, and a token of its contents: None if the memory may be written without a version change."""


class Replicas:
    """The members of a data parallel program in one process.

    The first runs on the caller's scope; the others keep copies of its values, which stay equal, since all make the
    same updates. Values that others write to the scope (a startup program, loading) are copied again, and at each run
    those that may be written through an exported array. The caller's thread runs no member: it holds no queue while it
    waits, so that no member waits for it. Runs of several threads take turns.

    ``executor``: the executor whose settings the members' executors get.
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
        self._rendezvous = self._new_rendezvous()
        self._running = new_rlock()

    def _new_rendezvous(self) -> Rendezvous:
        rendezvous = Rendezvous(len(self.places))
        several = zip(self._threads, rendezvous.members, map(devices.unit, self.places), strict=True)
        for future in [thread.submit(share_devices, member, unit) for thread, member, unit in several]:
            future.result()
        return rendezvous

    def run(
        self, feed: Any, fetch_list: Any, scope: Scope, return_numpy: bool = True, return_merged: bool = True
    ) -> list[Any]:
        """Run once on all places; return the fetched values, those of all places concatenated or in a list."""
        requested = fetch_list if fetch_list is not None else ()
        fetches = check_list("fetch_list", requested, "variables or names", FetchError, one=(str, Variable))
        with self._running:
            results = self._run_members(feed, fetches, scope, return_numpy)
        if not return_merged:
            return [list(parts) for parts in zip(*results, strict=True)]
        names = [item if isinstance(item, str) else item.name for item in fetches]
        return [joined(name, parts) for name, parts in zip(names, zip(*results, strict=True), strict=True)]

    def _run_members(self, feed: Any, fetches: Sequence[Any], scope: Scope, return_numpy: bool) -> list[Any]:
        members = self._rendezvous.members
        programs = [self._program_of(member) for member in members]
        feeds = self._split_feed(programs[0].global_block(), feed)
        if programs[0].readers:  # in the order of places, and before any member runs: at the end of an epoch none does
            feeds = list(map(fed_by_readers, programs, feeds, self.places))
        self._copy_changes(programs[0], scope)
        for child, program in zip(self._scopes, programs[1:], strict=True):
            child.update_random_runs(member_runs(scope, programs[0].random_seed, program.random_seed))
        scopes = [scope, *self._scopes]

        def run_member(i: int) -> Any:
            set_thread_ring(0, members[i])
            try:
                return self._executors[i].run(
                    programs[i], feeds[i], fetches, scope=scopes[i], return_numpy=return_numpy
                )
            except BaseException as exc:
                self._rendezvous.fail(i, exc)
                raise
            finally:
                set_thread_ring(0, None)

        futures = [thread.submit(run_member, i) for i, thread in enumerate(self._threads)]
        results: list[Any] = []
        errors: list[BaseException] = []
        for future in futures:
            try:
                results.append(future.result())
            except Exception as exc:
                errors.append(exc)
        if errors:
            self._rendezvous, self._owner = self._new_rendezvous(), None  # the members' values may differ now
            raise next((exc for exc in errors if not isinstance(exc, CollectiveError)), errors[0])
        self._versions = self._current_versions(programs[0], scope)
        return results

    def _split_feed(self, block: Block, feed: Any) -> list[Mapping[str, Any]]:
        """The feed of each place: its part of the rows, or its item of a list of feeds."""
        count = len(self.places)
        if isinstance(feed, (list, tuple)):
            if len(feed) != count:
                raise FeedError(f"the feed is a list of {len(feed)}; expected one mapping for each of {count} places")
            return list(feed)
        feed = check_mapping("the feed", feed or {}, "a mapping of names to arrays", FeedError)
        tensors = feed_tensors(block, feed, get_context(devices.host()), of_places=True)
        rows = {name: _rows(tensor) for name, tensor in tensors.items()}
        for name, number in rows.items():
            what = "sequences" if tensors[name].lod() else "rows"
            if number < count:
                raise FeedError(f"feed {name!r} has {number} {what} for {count} places; each needs one")
            first = next(iter(rows))
            if number != rows[first]:
                raise FeedError(
                    f"feed {name!r} has {number} {what}, and {first!r} has {rows[first]}; each of {count} places gets "
                    "its part of both\n  Do: feed as many, or a list of one mapping for each place"
                )
        parts: list[dict[str, Any]] = [{} for _ in range(count)]
        for name, tensor in tensors.items():
            for part, value in zip(parts, _split(tensor, rows[name], count), strict=True):
                part[name] = value
        return list(parts)

    def _current_versions(self, program: Program, scope: Scope) -> dict[str, _Version]:
        versions: dict[str, _Version] = {}
        for name in state_names(program, scope):
            variable = scope.find_var(name)
            assert variable is not None and variable.tensor.allocation is not None
            versions[name] = variable.tensor, variable.tensor.version, variable.tensor.allocation.contents
        return versions

    def _copy_changes(self, program: Program, scope: Scope) -> None:
        """Copy values that were written into the scope since the last run to the other members."""
        current = self._current_versions(program, scope)
        if self._owner is not scope:
            self._owner, self._versions = scope, {}
            self._scopes = [Scope() for _ in self.places[1:]]
        for name in [name for name, entry in current.items() if entry[2] is None or self._versions.get(name) != entry]:
            variable = scope.find_var(name)
            assert variable is not None
            value, lod = variable.tensor.numpy().copy(), variable.tensor.lod()
            for i, replica_scope in enumerate(self._scopes, 1):  # on its thread: a run then waits for no other queue
                tensor = replica_scope.var(name).get_tensor()
                self._threads[i].submit(tensor.set, value, self.places[i], lod).result()


def _rows(tensor: Tensor) -> int:
    """The number of a fed value's rows or, with LoD, of its sequences; 0 of a number."""
    lod = tensor.lod()
    return len(lod[0]) - 1 if lod else (*tensor.dims, 0)[0]


def _split(tensor: Tensor, rows: int, count: int) -> list[Any]:
    """Split a value into ``count`` parts of about equally many rows or, with LoD, sequences."""
    array, lod = tensor.numpy(), tensor.lod()  # of the host: the members' queues do not wait for the tensor's queue
    bounds = [rows * i // count for i in range(count + 1)]
    return [_part(array, lod, begin, end) for begin, end in pairwise(bounds)]


def _part(value: np.ndarray[Any, Any], lod: Sequence[Sequence[int]], begin: int, end: int) -> Any:
    """A range of rows, or of sequences of the first level with their inner sequences and rows."""
    levels = []
    for offsets in lod:
        levels.append([at - offsets[begin] for at in offsets[begin : end + 1]])
        begin, end = offsets[begin], offsets[end]
    part = value[begin:end]
    return Tensor().set(part, None, levels) if levels else part


def joined(name: str, parts: Sequence[Any]) -> Any:
    """Concatenate the values that members fetched; tensors are joined to a tensor with all sequences.

    Raises FetchError if they are tensor arrays, or their numbers of LoD levels differ.
    """
    if isinstance(parts[0], (list, TensorArray)):
        raise FetchError(
            f"variable {name!r} is a tensor array, whose elements on {len(parts)} places are not joined"
            "\n  Do: fetch layers.tensor_array_to_tensor of it"
        )
    values = np.concatenate([np.atleast_1d(np.asarray(part)) for part in parts])
    if not isinstance(parts[0], Tensor):
        return values
    levels = {len(part.lod()) for part in parts}
    if len(levels) > 1:
        raise FetchError(f"variable {name!r} has {sorted(levels)} LoD levels on different places; expected one number")
    return Tensor().set(values, None, concatenated_lod(part.lod() for part in parts))
