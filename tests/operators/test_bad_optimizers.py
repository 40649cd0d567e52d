"""Bad input to the optimisers' operators: one clear error each, when the program is built."""

from __future__ import annotations

from typing import Any

import pytest
from grouped import grouped

import fluidlite as fluid
from fluidlite.base.errors import AttributeValueError, DtypeError, ProgramError, ShapeError
from fluidlite.program.registry import ops

STATE = {
    "sgd": (),
    "momentum": ("Velocity",),
    "lars_momentum": ("Velocity",),
    "adam": ("Moment1", "Moment2"),
    "adamax": ("Moment", "InfNorm"),
    "adagrad": ("Moment",),
    "decayed_adagrad": ("Moment",),
    "proximal_adagrad": ("Moment",),
    "proximal_gd": (),
    "adadelta": ("AvgSquaredGrad", "AvgSquaredUpdate"),
    "rmsprop": ("MeanSquare", "Moment"),
    "ftrl": ("SquaredAccumulator", "LinearAccumulator"),
    "lamb": ("Moment1", "Moment2"),
    "dpsgd": (),
}
REQUIRED = {"momentum": {"mu": 0.9}, "lars_momentum": {"mu": 0.9}, "lamb": {"weight_decay": 0.1}}
SCALARS = ("LearningRate", "Beta1Pow", "Beta2Pow")
OUT = {"SquaredAccumulator": "SquaredAccumOut", "LinearAccumulator": "LinearAccumOut"}


def given(type: str) -> dict[str, tuple[tuple[int, ...], str]]:
    """Good dims and dtypes of an update's inputs."""
    op = ops.get(type)
    slots = ["Param", "Grad", *STATE[type], *(slot for slot in SCALARS if op.input(slot) is not None)]
    return {slot: ((1,) if slot in SCALARS else (3, 4), "float32") for slot in slots}


def append(type: str, slots: dict[str, tuple[tuple[int, ...], str]], attrs: dict[str, Any]) -> None:
    block = fluid.Program().global_block()
    inputs = {s: block.create_var(s, dims, dtype, persistable=True) for s, (dims, dtype) in slots.items()}
    outputs = {slot.name: inputs.get(slot.name.removesuffix("Out")) for slot in ops.get(type).outputs}
    for slot, name in OUT.items():
        if slot in inputs:
            outputs[name] = inputs[slot]
    block.append_op(type, inputs, outputs, attrs)


def wrong() -> list[Any]:
    found = []
    for type in STATE:
        good = given(type)
        for slot in good:
            if slot == "Param":
                found.append((type, {slot: ((3, 4), "int64")}, DtypeError, slot))
                continue
            dims = (2,) if slot in SCALARS else (4, 3)
            found.append((type, {slot: (dims, "float32")}, ShapeError, slot))
            found.append((type, {slot: (good[slot][0], "float64")}, DtypeError, slot))
    return found


@pytest.mark.parametrize("type", list(STATE))
def test_good_input_passes(type: str) -> None:
    append(type, given(type), REQUIRED.get(type, {}))


@grouped(("type", "change", "error", "word"), wrong(), ("type",))
def test_dims_and_dtypes(type: str, change: Any, error: type[ProgramError], word: str) -> None:
    with pytest.raises(error, match=word) as caught:
        append(type, given(type) | change, REQUIRED.get(type, {}))
    assert f"operator {type}" in str(caught.value) and "expected" in str(caught.value)


@pytest.mark.parametrize("type", list(STATE))
def test_half_parameters_take_state_of_their_own_or_of_their_compute_dtype(type: str) -> None:
    for state in ("float16", "float32"):
        slots = {
            slot: (dims, "float16" if slot in ("Param", "Grad") else state) for slot, (dims, _) in given(type).items()
        }
        append(type, slots, REQUIRED.get(type, {}))
    with pytest.raises(DtypeError, match="Grad"):
        append(type, slots | {"Grad": ((3, 4), "float32")}, REQUIRED.get(type, {}))


@pytest.mark.parametrize(
    ("type", "attrs", "word"),
    [
        ("momentum", {}, "mu"),
        ("momentum", {"mu": 0.9, "regularization_method": "l3"}, "regularization_method"),
        ("lars_momentum", {}, "mu"),
        ("lamb", {}, "weight_decay"),
        ("adam", {"beta1": "much"}, "beta1"),
    ],
)
def test_attributes(type: str, attrs: dict[str, Any], word: str) -> None:
    with pytest.raises(AttributeValueError, match=word):
        append(type, given(type), attrs)


def test_a_centered_rmsprop_needs_the_mean_of_the_gradient() -> None:
    with pytest.raises(ShapeError, match="MeanGrad"):
        append("rmsprop", given("rmsprop"), {"centered": True})


NUMBERS = ("in_num_accumulates", "in_old_num_accumulates", "in_num_updates")


@pytest.mark.parametrize(
    ("change", "attrs", "error", "word"),
    [
        ({"in_sum_2": ((4, 3), "float32")}, {}, ShapeError, "in_sum_2"),
        ({"in_sum_1": ((3, 4), "float64")}, {}, DtypeError, "in_sum_1"),
        ({"in_num_updates": ((1,), "int32")}, {}, DtypeError, "in_num_updates"),
        ({"in_num_updates": ((2,), "int64")}, {}, ShapeError, "in_num_updates"),
        ({}, {"min_average_window": 21}, AttributeValueError, "min_average_window"),
    ],
)
def test_average_accumulates(change: Any, attrs: dict[str, Any], error: type[ProgramError], word: str) -> None:
    slots: dict[str, Any] = {slot: ((3, 4), "float32") for slot in ("param", "in_sum_1", "in_sum_2", "in_sum_3")}
    slots |= {slot: ((1,), "int64") for slot in NUMBERS}
    block = fluid.Program().global_block()
    inputs = {s: block.create_var(s, *spec, persistable=True) for s, spec in (slots | change).items()}
    outputs = {slot.replace("in_", "out_", 1): inputs[slot] for slot in slots if slot != "param"}
    with pytest.raises(error, match=word):
        block.append_op(
            "average_accumulates", inputs, outputs, {"max_average_window": 20, "min_average_window": 5, **attrs}
        )


@pytest.mark.parametrize(
    ("change", "attrs", "error", "word"),
    [
        ({"Slow": ((4, 3), "float32")}, {}, ShapeError, "Slow"),
        ({"Slow": ((3, 4), "float64")}, {}, DtypeError, "Slow"),
        ({"Step": ((1,), "float32")}, {}, DtypeError, "Step"),
        ({"Step": ((2,), "int32")}, {}, ShapeError, "Step"),
        ({}, {"k": 0}, AttributeValueError, "k"),
        ({}, {"alpha": 1.5}, AttributeValueError, "alpha"),
    ],
)
def test_lookahead_update(change: Any, attrs: dict[str, Any], error: type[ProgramError], word: str) -> None:
    slots: dict[str, Any] = {"Fast": ((3, 4), "float32"), "Slow": ((3, 4), "float32"), "Step": ((1,), "int32")}
    block = fluid.Program().global_block()
    inputs = {s: block.create_var(s, *spec, persistable=True) for s, spec in (slots | change).items()}
    with pytest.raises(error, match=word):
        block.append_op("lookahead_update", inputs, {"FastOut": inputs["Fast"], "SlowOut": inputs["Slow"]}, attrs)


PARTS: list[tuple[str, tuple[str, ...], tuple[str, ...], dict[str, Any], dict[str, str]]] = [
    ("dpsgd_step", ("Grad",), ("LearningRate", "Noise"), {}, {"ParamOut": "Param"}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("part", "slot"),
    [(part, slot) for part in PARTS for slot in (*part[1], *part[2])],
    ids=lambda v: v if isinstance(v, str) else v[0],
)
def test_parts_of_an_update_check_their_inputs_alone(part: Any, slot: str) -> None:
    """Each is an operator of its own, which a program may use without the others."""
    type, tensors, numbers, attrs, outs = part
    dims = {"Param": (3, 4), **dict.fromkeys(tensors, (3, 4)), **dict.fromkeys(numbers, (1,))}

    def build(dims: dict[str, tuple[int, ...]], dtypes: dict[str, str]) -> None:
        block = fluid.Program().global_block()
        inputs = {s: block.create_var(s, d, dtypes.get(s, "float32"), persistable=True) for s, d in dims.items()}
        outputs = {s: inputs[same] if same else block.create_var(s.lower()) for s, same in outs.items()}
        block.append_op(type, inputs, outputs, attrs)

    build(dims, {})
    with pytest.raises(DtypeError, match=slot):
        build(dims, {slot: "int64"})
    with pytest.raises(ShapeError, match=slot) as caught:
        build({**dims, slot: (2, 4) if slot in tensors else (3, 4)}, {})
    assert f"operator {type}" in str(caught.value) and "expected" in str(caught.value)
