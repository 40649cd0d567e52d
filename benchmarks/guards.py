"""Nanoseconds of a call by generated text, and by a plain function that walks guards and arguments as data.

    python benchmarks/guards.py [--rounds N] [--json FILE]

The program multiplies 1, 3 and 10 feeds of four numbers by as many parameters, and adds the products up: it computes
next to nothing. Both do the same: they look at the program, the fetches, each feed and each parameter, take the locks,
copy in, run the same kernels, and copy out. They alternate in short turns; times are the processor's, least of many.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from common import fix_environment, in_turns, machine, options, report, show

COUNTS = (1, 3, 10)
CALLS = 2000
"""Calls a turn."""


def plain(fast: Any) -> Callable[..., Any]:
    """A function that does what a fast path's text does, with its facts in tuples.

    It has what a program needs that keeps its feeds in memory of its own, and copies its results.
    """
    import numpy as np

    from fluidlite.compiler.executable.call_signature import CALL, COPIED, MARKING
    from fluidlite.tensor.tensor import Tensor

    form, world = fast.form, fast.call.__globals__
    assert not form.has_dynamic_memory and not form.timed and set(form.results) == {COPIED}
    scope_of, edits, name_of = (world[name] for name in ("scope_of", "edits", "name_of"))
    context, thread, get_ident, storage = (world[name] for name in ("context", "thread", "get_ident", "storage"))
    cache_version, watch, latest, executable, frame = (
        world[name] for name in ("cache_version", "watch", "latest", "executable", "frame")
    )
    counts, launches, copies, copied = (world[name] for name in ("counts", "launches", "copies", "copied"))
    acquire, release, activate, mark = (world[name] for name in ("acquire_queue", "release_queue", "activate", "mark"))
    host_array, native, ndarray = world["host_array"], form.native, np.ndarray
    locked = bool(form.state or not native or form.queued)
    suspects = not native or MARKING in form.actions
    fetches = tuple((world[f"fetch{i}_variable"], name) for i, name in enumerate(form.fetched))
    feeds = tuple(
        (name, *(world[f"arg{i}_{what}"] for what in ("spec", "dims", "dtype", "at")))
        for i, (name, _) in enumerate(form.feeds)
    )
    state = tuple(
        (world[f"state{i}"], *(world[f"state{i}_{what}"] for what in ("allocation", "block", "spec", "offset")))
        for i in range(len(form.state))
    )
    written = tuple(world[f"state{i}_allocation"] for i, (_, writes) in enumerate(form.state) if writes)
    actions = tuple(
        (kind == MARKING, world[f"action{i}"] if kind == CALL else world[f"chain{i}"].run)
        for i, kind in enumerate(form.actions)
    )
    results = tuple(world[f"result{i}_at"].copy for i in range(len(form.results)))

    def call(program: Any, feed: Any, fetch_list: Any, scope: Any) -> Any:
        if scope_of() is not scope or program.edits != edits:
            return None
        if type(fetch_list) is not list or len(fetch_list) != len(fetches):
            return None
        for given, (variable, name) in zip(fetch_list, fetches, strict=False):
            if given is not variable and name_of(given) != name:
                return None
        if not isinstance(feed, dict) or len(feed) != len(feeds):
            return None
        arrays = []
        for name, spec, dims, dtype, _ in feeds:
            array = feed.get(name)
            if type(array) is Tensor:
                array = host_array(array, spec, context)
            if type(array) is not ndarray or array.shape != dims or array.dtype is not dtype:
                return None
            arrays.append(array)
        if get_ident() != thread:
            return None
        if locked:
            acquire()
        try:
            if storage.busy or (cache_version.current is not watch.version and not watch.unchanged()):
                return None
            for tensor, allocation, block, spec, offset in state:
                if (
                    tensor.allocation is not allocation
                    or allocation.block is not block
                    or tensor.spec is not spec
                    or tensor._byte_offset != offset
                    or tensor._strides is not None
                ):
                    return None
            storage.busy = True
            latest.executable = executable
            at = -1
            try:
                if not native:
                    frame.scope = scope
                for array, (*_, place) in zip(arrays, feeds, strict=False):
                    place[...] = array
                if native:
                    for at, (marks, act) in enumerate(actions):  # noqa: B007  # read where it fails
                        if marks:
                            mark()
                        act()
                else:
                    with activate():
                        for at, (marks, act) in enumerate(actions):  # noqa: B007  # read where it fails
                            if marks:
                                mark()
                            act()
                counts.launches += launches
                if suspects:
                    at = -1
                    if context.may_have_error:
                        watch.raise_late()
                counts.copy_out += copies
                counts.bytes_out += copied
                return [copy() for copy in results]
            except BaseException as error:
                watch.fail(error, at)
                raise
            finally:
                storage.busy = False
                if native:
                    for allocation in written:
                        allocation.version += 1
                else:
                    executable.end((executable,))
        finally:
            if locked:
                release()

    return call


def measured(count: int, rounds: int) -> dict[str, float]:
    """Nanoseconds of a call of a program with so many feeds and parameters, by way of calling."""
    import numpy as np

    import fluidlite as fluid
    from fluidlite import layers

    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
        xs = [layers.data(f"x{i}", [4], append_batch_size=False) for i in range(count)]
        ws = [layers.create_parameter([4], "float32") for _ in xs]
        y = layers.sum([x * w for x, w in zip(xs, ws, strict=True)])
        program, startup = fluid.default_main_program(), fluid.default_startup_program()
    exe, scope = fluid.Executor("cpu"), fluid.Scope()
    exe.run(startup, scope=scope)
    feed = {f"x{i}": np.full(4, i, "float32") for i in range(count)}
    for _ in range(3):
        (expected,) = exe.run(program, feed, [y], scope=scope)
    assert exe._fast_paths is not None
    entry = exe._fast_paths.get(program.serial)
    assert entry is not None, "a program that ran three times has a fast path"
    fast = entry.fast_paths[0]
    ways = {"generated text": fast.call, "data": plain(fast)}
    for name, call in ways.items():
        found = call(program, feed, [y], scope)
        assert found is not None and np.array_equal(found[0], expected), name

    def repeated(call: Callable[..., Any]) -> Callable[[], None]:
        def calls() -> None:
            fetches = [y]
            for _ in range(CALLS):
                call(program, feed, fetches, scope)

        return calls

    times = in_turns({name: repeated(call) for name, call in ways.items()}, rounds, clock=time.process_time)
    return {name: 1e9 * each.least / CALLS for name, each in times.items()}


def main() -> int:
    """Print the table."""
    parser = options(__doc__)
    parser.add_argument("--rounds", type=int, default=60)
    arguments = parser.parse_args()
    fix_environment(arguments.threads)
    figures = {str(count): measured(count, arguments.rounds) for count in COUNTS}
    rows = [
        [count, round(each["generated text"]), round(each["data"]), round(each["data"] - each["generated text"])]
        for count, each in figures.items()
    ]
    show(
        "Nanoseconds of a call, least",
        ["feeds, and parameters", "generated text", "data", "what the text is worth"],
        rows,
    )
    report(arguments.json, machine(arguments.threads), figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
