"""The garbage collector waits while a program is compiled, and is as it was afterwards."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import weakref

import pytest

import fluidlite as fluid
from fluidlite.base.collection import gc_paused, is_collecting
from fluidlite.compiler.passes.pass_list import PassList


def test_it_waits_within_and_goes_on_behind() -> None:
    with gc_paused():
        assert not gc.isenabled()
        with gc_paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(KeyError), gc_paused():
        raise KeyError
    assert gc.isenabled()


def test_who_turned_it_off_finds_it_off() -> None:
    gc.disable()
    try:
        with gc_paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()


class Knot:
    """It holds itself, so that only a collection ends it."""

    def __init__(self) -> None:
        self.itself = self


def test_it_is_known_that_garbage_is_collected() -> None:
    seen: list[bool] = []
    knot = Knot()
    noted = weakref.ref(knot, lambda _: seen.append(is_collecting()))
    del knot
    assert not is_collecting()
    gc.collect()
    assert noted() is None and seen == [True] and not is_collecting()


def test_an_interrupt_during_a_collection_is_not_lost() -> None:
    # In a process of its own: callbacks of other libraries (Hypothesis has one in Python) do lose it.
    script = """
import _thread, gc, signal, weakref
from functools import partial
import fluidlite
signal.signal(signal.SIGINT, signal.default_int_handler)
class Knot:
    pass
knot = Knot()
knot.itself = knot
# No code of Python, which would handle it.
noted = weakref.ref(knot, partial(next, map(_thread.interrupt_main, [signal.SIGINT])))
del knot
try:
    gc.collect()
    for _ in range(1000):
        pass
except KeyboardInterrupt:
    print("interrupted", noted())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("interrupted None\n", "", 0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_child_that_is_forked_meanwhile_has_it() -> None:
    with gc_paused():
        child = os.fork()
        if not child:
            os._exit(not gc.isenabled())
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert not gc.isenabled()
    assert gc.isenabled()


def test_passes_run_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    run = PassList.run

    def noted(self: PassList, *given: object, **named: object) -> None:
        seen.append(gc.isenabled())
        run(self, *given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(PassList, "run", noted)
    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
        y = fluid.layers.relu(fluid.layers.data("x", [3]))
        fluid.Executor("cpu").run(feed={"x": [[1.0, 2.0, 3.0]]}, fetch_list=[y])
    assert seen == [False] and gc.isenabled()
