"""Saved programs, and mutants of them: numbers, structure and bytes."""

from __future__ import annotations

import json
import random
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

import fluidlite as fluid
import fluidlite.graph as ng
from fluidlite import layers as L
from fluidlite.base.dtypes import NUMPY
from fluidlite.conformance.cases import Case, cases
from fluidlite.conformance.op_harness import build
from fluidlite.conformance.reference import Oracle
from fluidlite.program.registry import ops

NUMBERS = [
    0, 1, -1, 2, 3, 7, -2, 64, 65, 255, 1000, 2**15, 10**6, 2**20, 2**28, 2**31 - 1, 2**31, 2**32, 2**40, 2**47, 2**48,
    2**53 + 1, 2**62, 2**63 - 1, 2**63, -(2**31), -(2**63), -(2**63) - 1, 10**30, 10**400, 0.0, -0.0, 0.5, -0.5, 1e-300,
    1e38, 1e39, 1e308, -1e308, float("nan"), float("inf"), float("-inf"), True, False,
]  # fmt: skip
STRANGE = [
    None, "", "x", "\0", "../../etc/passwd", "@EMPTY@", "float64", "int8", "bool", "cpu:0", "fpga:0", "nowhere:9", [],
    {}, [[]], [None], {"a": []}, [2**70], ["x"] * 1000, [0] * 5000, [[1]] * 100, "x" * 10_000, "\ud800",
]  # fmt: skip


def operator_programs() -> list[Case]:
    """One case a sample, of all operators."""
    return [case for case in cases() if case.op.type in ops]


def program_of(case: Case) -> str:
    """A program of one operator, with what is fed and fetched, as JSON."""
    wanted = case.sample.outputs or tuple(slot.name for slot in case.op.outputs)
    several = {slot.name for slot in case.op.outputs if slot.duplicable}
    found = Oracle(case).outputs if several & set(wanted) else {}
    one = build(case, {slot: len(found.get(slot, (None,))) for slot in wanted})
    program = one.program
    program.feed_names = list(one.feed)
    program.fetch_names = [variable.name for each in one.outputs.values() for variable in each]
    return program.to_json()


def networks() -> list[str]:
    """A network for inference, one that trains, and a graph of the functional front with initial values."""
    found = []
    for train in (False, True):
        main, startup = fluid.Program(), fluid.Program()
        with fluid.program_guard(main, startup), fluid.unique_name.guard():
            x = L.data("x", [3, 8, 8])
            x = L.pool2d(L.batch_norm(L.conv2d(x, 4, 3, act="relu"), is_test=not train), 2, pool_stride=2)
            out = L.softmax(L.fc(L.dropout(L.reshape(x, [0, -1]), 0.5, is_test=not train), 5))
            if train:
                label = L.data("label", [1], dtype="int64")
                out = L.mean(L.cross_entropy(out, label))
                fluid.optimizer.Adam(0.1).minimize(out)
                main.feed_names = ["x", "label"]
            else:
                main.feed_names = ["x"]
            main.fetch_names = [out.name]
        found += [main.to_json(), startup.to_json()]
    main = fluid.Program()
    with fluid.program_guard(main, fluid.Program()), fluid.unique_name.guard():
        state = ng.variable((2, 3), 1.0)
        table = ng.constant(np.float32([[1, 2, 3]]))
        put = ng.sequential([ng.assign(state, state + table), state * 2])
        main.fetch_names = [put.name]
    return [*found, main.to_json()]


def _leaves(value: Any, here: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield (*here, key)
        yield from _leaves(item, (*here, key))


def _at(record: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        record = record[key]
    return record


def mutant(text: str, chance: random.Random, types: list[str]) -> bytes:
    """Change a program's JSON in one place to three."""
    if chance.random() < 0.1:
        return _bytes(text.encode(), chance)
    record = json.loads(text)
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        _change(record, chance, types)
    made = json.dumps(record).encode()
    return _bytes(made, chance) if chance.random() < 0.05 else made


STEERING = [0, 3, 10**6, 2**28, 2**31 - 1, 2**40, 2**63 - 1, -(2**63)]


def changed_numbers(text: str) -> Iterator[bytes]:
    """A program with each of its attributes' numbers, and each of its sizes, replaced by each that is in STEERING."""
    record = json.loads(text)
    paths = list(_leaves(record))
    attrs = [path for path in paths if "attrs" in path and type(_at(record, path)) is int]
    dims = [path for path in paths if "dims" in path and type(_at(record, path)) is int]
    groups = [[path] for path in attrs]
    groups += [[path for path in dims if _at(record, path) == size] for size in {_at(record, path) for path in dims}]
    for group in groups:
        old = _at(record, group[0])
        for new in STEERING:
            for path in group:
                _at(record, path[:-1])[path[-1]] = new
            yield json.dumps(record).encode()
        for path in group:
            _at(record, path[:-1])[path[-1]] = old


def _bytes(text: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(text))
    kind = chance.randrange(4)
    if kind == 0:
        return text[:at]
    if kind == 1:
        return text[:at] + chance.randbytes(chance.randrange(1, 9)) + text[at:]
    if kind == 2:
        return text[:at] + bytes([text[at] ^ (1 << chance.randrange(8))]) + text[at + 1 :]
    return text[:at] + text[chance.randrange(len(text)) :]


def _change(record: Any, chance: random.Random, types: list[str]) -> None:
    paths = list(_leaves(record))
    numbers = [path for path in paths if type(_at(record, path)) in (int, float)]
    steering = [path for path in numbers if {"dims", "attrs", "node"} & set(path)]
    kind = chance.random()
    if kind < 0.45 and steering:
        path = chance.choice(steering)
        value = _at(record, path)
        new = chance.choice(NUMBERS[:9] if chance.random() < 0.4 else NUMBERS)
        if type(value) is int and chance.random() < 0.4:  # all dims of that size, so that inference agrees
            for other in steering:
                if _at(record, other) == value and "dims" in other:
                    _at(record, other[:-1])[other[-1]] = new
        _at(record, path[:-1])[path[-1]] = new
        return
    path = chance.choice(numbers if kind < 0.55 and numbers else paths)
    home, key = _at(record, path[:-1]), path[-1]
    if kind < 0.65:
        home[key] = chance.choice(NUMBERS)
    elif kind < 0.75:
        home[key] = json.loads(json.dumps(chance.choice(STRANGE)))
    elif kind < 0.8:
        del home[key]
    elif kind < 0.85 and isinstance(home, list):
        home.insert(chance.randrange(len(home) + 1), json.loads(json.dumps(home[key])))
    elif kind < 0.9:
        other = chance.choice(paths)
        home[key] = json.loads(json.dumps(_at(record, other)))
    elif kind < 0.95:
        op = chance.choice([path for path in paths if path[-1] == "type" and "ops" in path] or [path])
        _at(record, op[:-1])[op[-1]] = chance.choice(types)
    else:
        lists = [path for path in paths if isinstance(_at(record, path), list) and len(_at(record, path)) > 1]
        if lists:
            items = _at(record, chance.choice(lists))
            chance.shuffle(items)


TINY_BYTES = 4 << 20


def use(text: bytes, chance: random.Random) -> str:
    """Load a program, plan it, and run it if that takes little memory; return how far it came.

    Raises
    ------
    FluidError
        As documented; anything else is a fault.
    """
    try:
        program = fluid.Program.from_json(text)
    except fluid.errors.SavedModelError:
        return "program: refused"
    str(program)
    program.to_json()
    block = program.global_block()
    fetches = [name for name in program.fetch_names if block.find_var(name) is not None]
    fluid.explain(program, "cpu")
    tiny = {
        variable.name: tuple(2 if d < 0 else d for d in variable.spec.dims)
        for variable in program.list_vars()
        if variable.spec is not None
        and (variable.is_data or variable.persistable or variable.name in program.feed_names)
    }
    fed = {name: dims for name, dims in tiny.items() if name in block.vars and not block.vars[name].persistable}
    report = fluid.explain(program, "cpu", feed=fed, fetch_list=fetches)
    specs = [spec for line in report.plan.lines if line.call is not None
             for each in (*line.call.ins.values(), *line.call.outs.values()) for spec in each]  # fmt: skip
    if any(not spec.is_static for spec in specs) or sum(spec.nbytes for spec in specs) > TINY_BYTES:
        return "program: planned"
    if sum(np.prod(dims, dtype=float) for dims in tiny.values()) > TINY_BYTES / 8:
        return "program: planned"
    scope = fluid.Scope()
    feed = {}
    for name, dims in tiny.items():
        variable = block.find_var(name)
        if variable is None or variable.spec is None:
            continue
        value = np.ones(dims, NUMPY[variable.spec.dtype])
        if variable.persistable:
            scope.var(name).get_tensor().set(value, "cpu")
        else:
            feed[name] = value
    executor = fluid.Executor("cpu", mode=chance.choice(("compiled", "interpreted")))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            executor.run(program, feed=feed, fetch_list=fetches, scope=scope, return_numpy=False)
    finally:
        executor.close()
    return "program: ran"
