"""Batches of ever new lengths: compiled by one executor, against a fresh interpreted one and NumPy in float64."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite import layers as L
from fluidlite.compiler.executable import launch_templates, step_kernels
from fluidlite.compiler.executable.command_buffer import Recorder, Unrecordable, record_launches
from fluidlite.platform.context_pool import get_context
from fluidlite.program.kernel_io import IO
from fluidlite.program.op_call import Call
from fluidlite.program.registry import ops
from fluidlite.tensor.tensor_spec import Spec, specs_of

WIDE, HIDDEN = 4, 3
EDGES = ([3], [1], [2, 0, 3], [1, 1, 1, 1], [0, 4], [4, 0], [7, 7], [3], [0, 0, 1], [12, 1, 9, 2, 2], [2, 3])
"""Lengths that grow and shrink, with empty sequences, equal ones, and some that were there before."""


def _patterns(seed: int, count: int) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    drawn = [[int(n) for n in rng.integers(0, 9, rng.integers(1, 7))] for _ in range(count)]
    return [*EDGES, *(each if sum(each) else [*each, 1] for each in drawn)]


def _levels(lengths: list[int], levels: int) -> list[list[int]]:
    """Lengths of so many levels: one sequence of the last of those below, behind one of all others."""
    found = [lengths]
    for _ in range(levels - 1):
        count = len(found[0])
        found.insert(0, [count - 1, 1] if count > 1 else [count])
    return found


def _recurrent(x: Any, wide: int = HIDDEN) -> list[Any]:
    hidden, _ = L.dynamic_lstm(L.fc(x, 4 * wide, bias_attr=False), 4 * wide, use_peepholes=False)
    back, _ = L.dynamic_lstm(L.fc(hidden, 4 * wide, bias_attr=False), 4 * wide, is_reverse=True)
    return [hidden, L.sequence_pool(hidden, "max"), L.sequence_pool(hidden, "average"), back]


def _attention(x: Any) -> list[Any]:
    weights = L.sequence_softmax(L.fc(x, 1, bias_attr=False))
    pooled = L.sequence_pool(x * weights, "sum")
    return [weights, pooled, L.sequence_expand_as(pooled, x), L.sequence_expand(pooled, x)]


def _deep(x: Any) -> list[Any]:
    weights = L.sequence_softmax(L.fc(x, 1, bias_attr=False))
    pooled = L.sequence_pool(x * weights, "sum")
    return [weights, pooled, L.sequence_pool(pooled, "max")]


def _build(layers: Any, levels: int) -> tuple[Any, Any, list[Any], fluid.Scope]:
    main, startup, scope = fluid.Program(), fluid.Program(), fluid.Scope()
    main.random_seed = startup.random_seed = 5
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        x = L.data("x", [WIDE], lod_level=levels)
        made = layers(x)
        pairs = fluid.backward.append_backward(L.mean(made[0] * made[0]))
    return main, startup, [*made, *(gradient for _, gradient in pairs)], scope


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def _recurrent_reference(x: Any, offsets: list[int], parameters: list[Any]) -> list[Any]:
    project, weight, bias = parameters[:3]
    hidden = np.zeros((len(x), HIDDEN))
    for begin, end in pairwise(offsets):
        h, c = np.zeros(HIDDEN), np.zeros(HIDDEN)
        for t in range(begin, end):
            candidate, i, f, o = np.split(x[t] @ project + h @ weight + bias[0, : 4 * HIDDEN], 4)
            c = _sigmoid(f) * c + _sigmoid(i) * np.tanh(candidate)
            h = hidden[t] = _sigmoid(o) * np.tanh(c)
    parts = [hidden[a:b] for a, b in pairwise(offsets)]
    none = np.zeros(HIDDEN)
    return [
        hidden,
        np.array([part.max(0) if len(part) else none for part in parts]),
        np.array([part.mean(0) if len(part) else none for part in parts]),
    ]


def _attention_reference(x: Any, offsets: list[int], parameters: list[Any]) -> list[Any]:
    scores, weights = x @ parameters[0], np.zeros((len(x), 1))
    for a, b in pairwise(offsets):
        if b > a:
            e = np.exp(scores[a:b] - scores[a:b].max())
            weights[a:b] = e / e.sum()
    pooled = np.array([(x[a:b] * weights[a:b]).sum(0) for a, b in pairwise(offsets)])
    again = np.repeat(pooled, np.diff(offsets), axis=0)
    return [weights, pooled, again, again]


PROGRAMS = {
    "recurrent": (_recurrent, _recurrent_reference, 1),
    "attention": (_attention, _attention_reference, 1),
    "two levels": (_deep, lambda *given: _attention_reference(*given)[:2], 2),
    "three levels": (_deep, lambda *given: _attention_reference(*given)[:2], 3),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("place", fluid.places(), ids=str)
def test_each_batch_has_the_numbers_of_a_fresh_executor(place: fluid.Place, name: str) -> None:
    layers, reference, levels = PROGRAMS[name]
    main, startup, fetched, scope = _build(layers, levels)
    compiled = fluid.Executor(place, fallback="allow")
    compiled.run(startup, scope=scope)
    held: list[Any] = [scope.find_var(p.name) for p in main.all_parameters()]
    parameters = [np.asarray(each.get_tensor(), np.float64) for each in held]
    rng = np.random.default_rng(1)
    for lengths in _patterns(levels, 5) if place == fluid.CPUPlace() else EDGES[:7]:  # each is compiled there
        x = rng.normal(size=(sum(lengths), WIDE)).astype("float32")
        feed = {"x": fluid.create_lod_tensor(x, _levels(lengths, levels), fluid.CPUPlace())}
        found = compiled.run(main, feed, fetched, scope=scope, return_numpy=False)
        compiled.memory_plan.verify()
        fresh = fluid.Executor(place, fallback="allow", mode="interpreted")
        for mine, theirs in zip(found, fresh.run(main, feed, fetched, scope=scope, return_numpy=False), strict=True):
            assert mine.lod() == theirs.lod()
            np.testing.assert_allclose(np.asarray(mine), np.asarray(theirs), rtol=2e-5, atol=2e-6)
        offsets = [0, *accumulate(lengths)]
        for mine, wanted in zip(found, reference(x.astype(np.float64), offsets, parameters), strict=False):
            np.testing.assert_allclose(np.asarray(mine), wanted, rtol=2e-5, atol=2e-6)
        fresh.close()


def test_passes_count_no_rows_that_they_make_up() -> None:
    """Passes infer with dims that no tensor has: what is counted row by row would take gigabytes."""
    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
        x, pooled = L.data("x", [WIDE], lod_level=1), L.data("pooled", [WIDE])
        out = L.sequence_expand(pooled, x)
        op = out.block.ops[-1].definition
    rows, sequences = Spec.of((1 << 40, WIDE), "float32"), Spec.of((-1, WIDE), "float32", lod_level=1)
    call = Call(op, {"X": (rows,), "Y": (sequences,)}, {"Out": (rows,)}, {"ref_level": -1})
    assert op.infer is not None
    (found,) = specs_of(op.infer(call)["Out"])
    assert found.dims == (-1, WIDE)
    known = Call(op, {"X": (rows,), "Y": (sequences.with_(lod=((0, 2),)),)}, {"Out": (rows,)}, call.attrs)
    with pytest.raises(fluid.errors.ShapeError, match="1 sequences"):
        op.infer(known)


def test_launches_of_forms_are_those_of_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each form, filled in with where operands lie, is what the kernel itself launches there."""
    seen: list[str] = []
    made: list[Any] = []
    bind, form_of = step_kernels._bind_launch, launch_templates.launch_template

    def compared(each: Any, spots: Any, context: Any, io: Any, stay: bool) -> Any:
        lie = [spots[key] if at is None else spots[step_kernels.SPACE].after(at) for key, _, at in each.operands]
        tensors = [spot.tensor(spec) for spot, (_, spec, _) in zip(lie, each.operands, strict=True)]
        space = None
        if each.space is not None:
            lie.append(spots[step_kernels.SPACE].after(each.space[0]))
            space = lie[-1].tensor(Spec.of((each.space[1],), "uint8"))
        given = IO(each.call, tensors, context, io.op_id, io.random, space)
        recorder = record_launches(each.choice, each.kernel, context, given) if stay else None
        assert (each.template is not None) == (recorder is not None)
        if recorder is not None:
            said = each.template.at(lie)
            assert len(said) == len(recorder.launches)
            for (kernel, items, args, group), other in zip(said, recorder.launches, strict=True):
                assert (kernel, items, tuple(args), group) == (other[0], other[1], tuple(other[2]), other[3])
                assert all(type(a) is type(b) for a, b in zip(args, other[2], strict=True))
            seen.append(each.call.op.type)
        return bind(each, spots, context, io, stay)

    def counted(*args: Any) -> Any:
        made.append(args)
        return form_of(*args)

    monkeypatch.setattr(step_kernels, "_bind_launch", compared)
    monkeypatch.setattr(step_kernels, "launch_template", counted)
    main, startup, fetched, scope = _build(lambda x: _recurrent(x, 256), 1)  # so wide that kernels are of the language
    compiled = fluid.Executor("cpu", fallback="allow")
    compiled.run(startup, scope=scope)

    def run(lengths: list[int]) -> None:
        x = fluid.create_lod_tensor(np.ones((sum(lengths), WIDE), "float32"), [lengths], fluid.CPUPlace())
        compiled.run(main, {"x": x}, fetched, scope=scope, return_numpy=False)

    for lengths in ([2, 0, 5, 3], [6, 1, 2], [1, 4, 4, 3]):
        run(lengths)
    if not seen:
        pytest.skip("the cpu has no kernel language here")
    before = len(made)
    run([3, 2, 6, 1])  # new lengths, of as many rows at some step as before
    assert before and len(made) == before


class _Kernel:
    """Notes what a test says of its operands."""

    def __init__(self, args: Any) -> None:
        self.args = args

    def note(self, io: Any) -> Recorder | None:
        recorder = Recorder(io.context, False)
        try:
            recorder.launch("kernel", 8, self.args(io))
        except Unrecordable:
            return None
        return recorder


CANNOT = {
    "twice an offset": lambda io: [2 * io.span("A").offset],
    "a sum of two": lambda io: [io.span("A").offset + io.span("B").offset],
    "the number of the operator": lambda io: [io.op_id],
    "random words": lambda io: [*io.random],
    "before it": lambda io: [io.span("A").offset - 1],
    "the array": lambda io: [io.array("A")],
}
CAN = {
    "a span": lambda io: [*io.span("B")[:2], 5, 0.5],
    "an address": lambda io: [io.address("A") + 4, 1 << 45],
    "both": lambda io: [*io.span("A")[:2], *io.span("B")[:2], io.workspace.span().offset],
}


@pytest.mark.parametrize("name", [*CANNOT, *CAN])
def test_what_cannot_be_told_has_no_form(name: str) -> None:
    specs = [Spec.of((2, 3), "float32")] * 2
    op = ops.get("elementwise_add")
    call = Call(op, {"A": (specs[0],), "B": (specs[1],)}, {}, {})
    args: Any = (CANNOT | CAN)[name]
    context = get_context(fluid.CPUPlace())
    form = launch_templates.launch_template(call, specs, 16, _Kernel(args).note, context)
    assert (form is not None) == (name in CAN)
    if form is None:
        return
    made = [fluid.Tensor() for _ in range(3)]
    for tensor, spec in zip(made, [*specs, Spec.of((16,), "uint8")], strict=True):
        tensor.spec, tensor.place = spec, fluid.CPUPlace()
        tensor.allocate(context)
    lie = [launch_templates.Spot.of(tensor).after(4) for tensor in made]
    io = IO(
        call,
        [x.tensor(s) for x, s in zip(lie, specs, strict=False)],
        context,
        0,
        (0,) * 4,
        lie[2].tensor(Spec.of((8,), "uint8")),
    )
    assert form.at(lie) == [("kernel", 8, args(io), None)]
