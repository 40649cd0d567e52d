"""Scopes: variables by name, and a chain of outer scopes."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.base.errors import ProgramError


def test_variables_are_made_once() -> None:
    scope = fluid.Scope()
    assert scope.find_var("a") is None
    one = scope.var("a")
    assert scope.var("a") is one
    assert scope.find_var("a") is one
    assert scope.local_var_names() == ["a"]
    one.get_tensor().set(np.ones(2))
    assert scope.find_var("a").get_tensor().numpy().tolist() == [1, 1]  # type: ignore[union-attr]
    assert "a" in repr(one)
    assert repr(scope) == "Scope(1 variables)"


def test_children_see_their_parents() -> None:
    scope = fluid.Scope()
    outer = scope.var("a")
    child = scope.new_scope()
    assert child.find_var("a") is outer
    own = child.var("a")
    assert own is not outer
    assert child.find_var("a") is own
    child.var("b")
    assert scope.find_var("b") is None
    child.erase(["a", "never there"])
    assert child.find_var("a") is outer
    scope.drop_kids()
    assert child.find_var("b") is not None


def test_scope_guard_is_for_this_thread_and_nests() -> None:
    base, one, two = fluid.global_scope(), fluid.Scope(), fluid.Scope()
    seen: list[fluid.Scope] = []
    with pytest.raises(RuntimeError), fluid.scope_guard(one):
        thread = threading.Thread(target=lambda: seen.append(fluid.global_scope()))
        thread.start()
        thread.join()
        with fluid.scope_guard(two):
            assert fluid.global_scope() is two
        assert fluid.global_scope() is one
        raise RuntimeError
    assert fluid.global_scope() is base
    assert seen[0] is not one
    refused = pytest.raises(ProgramError, match=r"the scope of scope_guard is dict \{\}; expected a Scope")
    with refused, fluid.scope_guard({}):  # type: ignore[arg-type]
        pass


def test_setting_a_tensor_is_seen_by_the_next_run() -> None:
    program = fluid.Program()
    block = program.global_block()
    block.create_var("w", [-1], "float32", persistable=True)
    block.append_op("scale", {"X": "w"}, {"Out": block.create_var("out")}, {"scale": 2.0})
    scope = fluid.Scope()
    tensor = scope.var("w").get_tensor()
    exe = fluid.Executor("cpu")
    for value in (np.ones(3), np.full(3, 4), np.zeros(5), np.arange(2)):
        tensor.set(value.astype("float32"))
        np.testing.assert_array_equal(exe.run(program, fetch_list=["out"], scope=scope)[0], value * 2)


def test_a_child_writes_into_the_scope_that_has_the_variable() -> None:
    program = fluid.Program()
    block = program.global_block()
    block.create_var("w", [2], "float32", persistable=True)
    block.append_op("scale", {"X": "w"}, {"Out": "w"}, {"bias": 1.0})
    scope = fluid.Scope()
    tensor = scope.var("w").get_tensor().set(np.zeros(2, "float32"))
    fluid.Executor("cpu").run(program, scope=scope.new_scope())
    assert tensor.numpy().tolist() == [1, 1]
