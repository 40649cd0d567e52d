"""Guards replace defaults for their own thread or task: others keep theirs, and build other programs meanwhile."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from contextvars import Context
from typing import Any

import pytest

import fluidlite as fluid
from fluidlite import layers
from fluidlite.errors import FetchError
from fluidlite.program.op_guards import current_device, current_namescope


@pytest.fixture
def short_turns() -> Iterator[None]:
    """Threads take turns every few bytecodes."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def numbering() -> fluid.unique_name.Generator:
    """The generator of this thread."""
    generator = fluid.unique_name.switch()
    fluid.unique_name.switch(generator)
    return generator


GUARDS: dict[str, tuple[Callable[[int], AbstractContextManager[Any]], Callable[[], Any]]] = {
    "main program": (lambda _: fluid.program_guard(fluid.Program()), fluid.default_main_program),
    "startup program": (
        lambda _: fluid.program_guard(fluid.Program(), fluid.Program()),
        fluid.default_startup_program,
    ),
    "names": (lambda _: fluid.unique_name.guard(), numbering),
    "scope": (lambda _: fluid.scope_guard(fluid.Scope()), fluid.global_scope),
    "device": (lambda rank: fluid.device_guard(("cpu", "fpga:0")[rank]), current_device),
    "name scope": (lambda rank: fluid.name_scope("ab"[rank]), current_namescope),
}


@pytest.mark.parametrize("what", GUARDS)
def test_a_guard_is_of_its_thread(what: str) -> None:
    """Two guards that overlap and end in the order in which they began, which is no stack."""
    guard, value = GUARDS[what]
    barrier = threading.Barrier(2)

    def first() -> None:
        with guard(0):
            own = value()
            barrier.wait(30)
            barrier.wait(30)
            assert value() is own
        barrier.wait(30)

    def second() -> None:
        default = value()
        barrier.wait(30)
        assert value() is default
        with guard(1):
            own = value()
            barrier.wait(30)
            barrier.wait(30)
            assert value() is own and own != default
        assert value() is default

    default = value()
    with ThreadPoolExecutor(2) as pool:
        for future in [pool.submit(first), pool.submit(second)]:
            future.result()
    assert value() is default


@pytest.mark.parametrize("what", GUARDS)
def test_a_guard_is_of_its_task(what: str) -> None:
    guard, value = GUARDS[what]
    default = value()

    async def one(rank: int) -> Any:
        with guard(rank):
            own = value()
            for _ in range(3):
                await asyncio.sleep(0)
                assert value() is own
        return own

    async def both() -> list[Any]:
        return await asyncio.gather(one(0), one(1))

    a, b = asyncio.run(both())
    assert a != b
    assert value() is default


def test_a_switch_in_a_guard_ends_with_it() -> None:
    main, startup, scope = fluid.default_main_program(), fluid.default_startup_program(), fluid.global_scope()
    other = fluid.Program()
    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.scope_guard(fluid.Scope()):
        fluid.framework.switch_main_program(other)
        fluid.framework.switch_startup_program(other)
        fluid.executor._switch_scope(fluid.Scope())
        assert fluid.default_main_program() is other and fluid.default_startup_program() is other
    assert (fluid.default_main_program(), fluid.default_startup_program()) == (main, startup)
    assert fluid.global_scope() is scope


def test_a_switch_outside_of_guards_is_the_process_s() -> None:
    """As each cell of a notebook may have a context of its own, the next one must see it."""
    program, scope, names = fluid.Program(), fluid.Scope(), fluid.unique_name.Generator()

    def switch(program: fluid.Program, scope: fluid.Scope, names: Any) -> tuple[fluid.Program, fluid.Scope, Any]:
        """Switch; return what was before."""
        return (
            fluid.framework.switch_main_program(program),
            fluid.executor._switch_scope(scope),
            fluid.unique_name.switch(names),
        )

    before = Context().run(switch, program, scope, names)  # this test is in a guard itself
    try:
        assert Context().run(fluid.default_main_program) is program
        assert Context().run(fluid.global_scope) is scope
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(fluid.default_main_program).result() is program
        assert fluid.default_main_program() is not program
    finally:
        assert Context().run(switch, *before) == (program, scope, names)


def test_a_guard_without_startup_program_leaves_that() -> None:
    before, other = fluid.default_startup_program(), fluid.Program()
    with fluid.program_guard(fluid.Program()):
        assert fluid.framework.switch_startup_program(other) is before
    assert fluid.framework.switch_startup_program(before) is other


def test_a_thread_that_starts_inside_a_guard_is_told_to_pass_its_program() -> None:
    doubled = layers.data("x", shape=[2]) * 2
    executor, feed = fluid.Executor("cpu"), {"x": [[1.0, 2.0]]}
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(executor.run, fluid.Program(), {}, [doubled])
        with pytest.raises(FetchError, match="another program\n  Do: pass that one to run; a thread does not see a"):
            run.result()
        (found,) = pool.submit(executor.run, fluid.default_main_program(), feed, [doubled]).result()
    assert found.tolist() == [[2.0, 4.0]]


def test_threads_build_programs_concurrently(short_turns: None) -> None:
    """Each is the one that a thread alone builds, in its operators, names, places and name scopes."""

    def built(width: int) -> tuple[str, str]:
        main, startup = fluid.Program(), fluid.Program()
        with fluid.program_guard(main, startup), fluid.unique_name.guard(), fluid.name_scope(f"net{width}"):
            x = layers.data("x", shape=[6])
            h = layers.fc(x, width, act="relu")
            with fluid.device_guard("cpu" if width % 2 else "fpga:0"):
                h = layers.layer_norm(h)
            loss = layers.mean(layers.fc(layers.dropout(h, 0.2, seed=1), 2))
            fluid.optimizer.Adam(0.1).minimize(loss)
        return main.to_string(with_details=True), startup.to_string(with_details=True)

    widths = [3, 4, 5, 6] * 3
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(built, widths)) == [built(width) for width in widths]
