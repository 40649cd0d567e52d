"""Operator definitions hold together: samples, references, inference, gradient rules and decompositions agree."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import pytest
from grouped import family, grouped

import fluidlite.operators
from fluidlite.base.dtypes import ALL_FLOATS, dtype_name
from fluidlite.base.errors import AttributeValueError, DtypeError, FluidError, ProgramError, ShapeError
from fluidlite.conformance.samples import Sample, reference_of, samples_of
from fluidlite.program.decompose import decompose
from fluidlite.program.inference import check_inputs
from fluidlite.program.op_call import Call
from fluidlite.program.opdef import GRAD, OpDef
from fluidlite.program.operator_arguments import check_attrs
from fluidlite.program.registry import ops
from fluidlite.program.rules import GradRule
from fluidlite.program.source_location import NOWHERE
from fluidlite.tensor.tensor_spec import Spec, specs_of

HERE = inspect.getsourcefile(fluidlite.operators).removesuffix("__init__.py")  # type: ignore[union-attr]
OURS = [op for op in ops._ops.values() if op.origin.startswith(HERE)]
SAMPLED = [op for op in OURS if reference_of(op.type) is not None]
GRADIENTS = {op.grad.type for op in OURS if isinstance(op.grad, GradRule)}

# Attributes that are taken for Fluid's sake and change nothing, or nothing that a reference can tell.
NO_OPS = {
    ("gather", "overwrite"),
    ("lookup_table", "is_sparse"),
    ("lookup_table_v2", "is_sparse"),
    ("random_crop", "startup_seed"),
    ("sampling_id", "seed"),
    ("adam", "lazy_mode"),
    ("adam", "min_row_size_to_use_multithread"),
    ("dropout", "seed"),
    ("dropout", "fix_seed"),
    ("cudnn_lstm", "seed"),
    ("cudnn_lstm", "fix_seed"),
    ("cudnn_lstm", "input_size"),  # it is checked
    ("softmax_with_cross_entropy", "numeric_stable_mode"),
    ("cast", "in_dtype"),
    ("auc", "curve"),
    ("teacher_student_sigmoid_loss", "soft_max_up_bound"),  # of the gradient
    ("teacher_student_sigmoid_loss", "soft_max_lower_bound"),
    ("data_norm", "epsilon"),  # of the gradient
    ("warpctc", "norm_by_times"),  # of the gradient
    ("lod_reset", "append"),  # of the LoD of Out
    ("sequence_conv", "contextStride"),  # it is checked
}

# So does every attribute whose doc says it; most are of Fluid's int8 kernels.
NO_OPS |= {(op.type, a.name) for op in SAMPLED for a in op.attrs if a.doc.endswith("of no effect")}

# Samples of collective operators have one member, and one member alone computes the identity, whatever these say.
NO_OPS |= {
    (op.type, a.name) for op in SAMPLED for a in op.attrs if op.type.startswith("c_")
    and a.name in ("ring_id", "use_calc_stream", "nranks", "root")
}  # fmt: skip

# What gradient operators write that is no gradient, as in Fluid: statistics for its servers.
STATISTICS = {"cvm": {"X"}, "data_norm": {"BatchSize", "BatchSum", "BatchSquareSum"}}

# Reasons why an operator is not said with others: kernels, or its expression, take such a call.
NO_REFERENCE = "a part is a gradient, which has no reference"
TAKEN = {
    "it is what expressions are decomposed into",
    "nothing is fused",
    "it is one expression",
    "no operator picks a class out of logarithms of probabilities",
    "no operator computes segment",
    NO_REFERENCE,
}

# Samples whose outputs have more dims while those of the inputs are unknown: only dims known to be 1 go.
RANK_OF_VALUES = {("squeeze", "all"), ("squeeze2", "all")}


def each(operators: Iterable[OpDef]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Parametrize a test with operators and their samples."""
    return grouped(("op",), ((op,) for op in operators), family, inner=("sample", lambda op: samples_of(op.type)))


def arrays(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def takes_value(op: OpDef, slot: str) -> bool:
    declared = op.input(slot)
    return declared is not None and declared.value


def sample_specs(op: OpDef, sample: Sample) -> dict[str, tuple[Spec, ...]]:
    def spec(slot: str, array: Any) -> Spec:
        numbers = tuple(array.reshape(-1).tolist()) if takes_value(op, slot) else None
        return Spec.of(array.shape, array.dtype.name, lod=sample.lod.get(slot, ()), value=numbers)

    return {slot: tuple(spec(slot, a) for a in arrays(value)) for slot, value in sample.inputs.items()}


def call_of(op: OpDef, specs: Mapping[str, Any], attrs: Mapping[str, Any]) -> Call:
    clean, _ = check_attrs(op, attrs, NOWHERE)
    ordered = {slot.name: specs[slot.name] for slot in op.inputs if slot.name in specs}
    call = Call(op, {slot: specs_of(v) for slot, v in ordered.items()}, {}, clean)
    check_inputs(call)
    return call


def inferred(call: Call) -> dict[str, tuple[Spec, ...]]:
    assert call.op.infer is not None
    return {slot: specs_of(v) for slot, v in call.op.infer(call).items()}


def wide(array: Any) -> Any:
    return array.astype("float64") if dtype_name(array.dtype) in ALL_FLOATS else array


Answer = dict[str, list[Any]]


def answer(op: OpDef, inputs: Mapping[str, Any], attrs: Mapping[str, Any], lod: Mapping[str, Any]) -> Answer:
    assert reference_of(op.type) is not None
    clean, _ = check_attrs(op, attrs, NOWHERE)
    extra = (lod,) if len(inspect.signature(reference_of(op.type)).parameters) > 2 else ()
    with np.errstate(all="ignore"):
        found = reference_of(op.type)(inputs, clean, *extra)
    return {slot: [np.asarray(a) for a in arrays(value)] for slot, value in found.items()}


def answer_sample(op: OpDef, sample: Sample, **changes: Any) -> dict[str, list[Any]]:
    inputs = {s: [wide(a) for a in v] if isinstance(v, list) else wide(v) for s, v in sample.inputs.items()}
    return answer(op, inputs, {**sample.attrs, **changes}, sample.lod)


def test_there_are_operators() -> None:
    assert len(SAMPLED) > 80
    assert all(op.doc for op in OURS)
    assert all(op.source or op.type.endswith("_grad") or op.run or op.marker for op in OURS)


@grouped(("op",), ((op,) for op in OURS), family)
def test_operators_without_samples_are_random_or_gradients_or_run_by_the_framework(op: OpDef) -> None:
    if reference_of(op.type) is None:
        assert op.random or not samples_of(op.type)
        assert op.type.endswith("_grad") or op.type in GRADIENTS or op.random or op.run is not None or op.marker
    else:
        names = [sample.name for sample in samples_of(op.type)]
        assert names and all(names) and len(set(names)) == len(names)


@grouped(("op", "name"), ((op, attr.name) for op in SAMPLED for attr in op.attrs if not attr.required), family)
def test_each_attribute_has_a_sample_in_which_its_default_answers_otherwise(op: OpDef, name: str) -> None:
    def differs(sample: Sample) -> bool:
        if name not in sample.attrs:
            return False
        default = op.attr(name).default  # type: ignore[union-attr]
        if default is None:
            attrs = {k: v for k, v in sample.attrs.items() if k != name}
        else:
            attrs = {**sample.attrs, name: default}
        try:
            call_of_default = inferred(call_of(op, sample_specs(op, sample), attrs))
            if call_of_default != inferred(call_of(op, sample_specs(op, sample), sample.attrs)):
                return True
            with_default = answer(op, {s: v if isinstance(v, list) else wide(v) for s, v in sample.inputs.items()},
                                  attrs, sample.lod)  # fmt: skip
        except (ProgramError, ValueError):
            return True
        right = answer_sample(op, sample)
        return any(
            a.shape != b.shape or not np.allclose(a, b, rtol=1e-4, atol=1e-4, equal_nan=True)
            for slot in right
            for a, b in zip(right[slot], with_default[slot], strict=True)
        )

    assert ((op.type, name) in NO_OPS) != any(differs(sample) for sample in samples_of(op.type))


@each(SAMPLED)
def test_references_give_what_inference_says(op: OpDef, sample: Sample) -> None:
    specs = inferred(call_of(op, sample_specs(op, sample), sample.attrs))
    found = answer_sample(op, sample)
    assert set(specs) - set(found) <= {slot.name for slot in op.outputs if "XShape" in slot.name}
    for slot, results in found.items():
        assert [a.shape for a in results] == [spec.dims for spec in specs[slot]] or op.dynamic, slot
        for array, spec in zip(results, specs[slot], strict=True):
            assert array.dtype == ("float64" if "float" in spec.dtype else spec.dtype), slot


@each(SAMPLED)
def test_unknown_dims_infer_what_exact_ones_do(op: OpDef, sample: Sample) -> None:
    exact = sample_specs(op, sample)
    wanted = inferred(call_of(op, exact, sample.attrs))
    unknown = {s: tuple(Spec.of(v.dims, v.dtype, lod_level=v.lod_level) for v in vs) for s, vs in exact.items()}

    def check(specs: Mapping[str, tuple[Spec, ...]]) -> None:
        if op.type == "gather_nd" and specs["Index"][0].dims[-1] < 0:
            return  # the rank of Out is not known then, and that is an error
        for slot, found in inferred(call_of(op, specs, sample.attrs).with_outs(wanted)).items():
            assert len(found) == len(wanted[slot])
            for loose, tight in zip(found, wanted[slot], strict=True):
                assert loose.fits(tight), f"{slot}: {loose} at build time, {tight} when exact"
                assert loose.lod_level == tight.lod_level

    check(unknown)
    if (op.type, sample.name) in RANK_OF_VALUES:
        return
    # how many numbers a tensor has that is taken as metadata is known: that says how many dims there are
    open_ = {s: vs for s, vs in unknown.items() if not takes_value(op, s)}
    everywhere = {s: tuple(v.with_(dims=(-1,) * v.rank) for v in vs) for s, vs in open_.items()}
    check({**unknown, **everywhere})
    batch = {s: tuple(v.with_(dims=(-1, *v.dims[1:]) if v.rank else ()) for v in vs) for s, vs in open_.items()}
    check({**unknown, **batch})
    for slot, vs in open_.items():
        for i, v in enumerate(vs):
            for axis in range(v.rank):
                one = v.with_(dims=(*v.dims[:axis], -1, *v.dims[axis + 1 :]))
                check({**unknown, slot: (*vs[:i], one, *vs[i + 1 :])})


@each(op for op in SAMPLED if isinstance(op.grad, GradRule))
def test_gradients_have_the_metadata_of_what_they_are_of(op: OpDef, sample: Sample) -> None:
    rule = op.grad
    assert isinstance(rule, GradRule)
    grad = ops.get(rule.type)
    exact = sample_specs(op, sample)
    specs: dict[str, Any] = {**exact, **inferred(call_of(op, exact, sample.attrs))}
    specs |= {slot.name + GRAD: specs[slot.name] for slot in op.outputs if slot.name in specs}
    given = {slot: specs[slot] for slot in rule.reads if slot in specs}
    assert set(rule.reads) == {slot.name for slot in grad.inputs}
    assert {slot + GRAD for slot in rule.writes} == {slot.name for slot in grad.outputs}
    attrs = {name: value for name, value in sample.attrs.items() if grad.attr(name)}
    call = call_of(grad, given, attrs)
    found = inferred(call)
    for slot in (slot for slot in rule.writes if slot in exact):
        # A gradient operator that reads only Out@GRAD takes its LoD from there: it is X's.
        assert [s.with_(lod=()) for s in found[slot + GRAD]] == [s.with_(lod=()) for s in specs[slot]]


@each(op for op in SAMPLED if op.grad is not None)
def test_graded_slots_are_floating_and_differentiable(op: OpDef, sample: Sample) -> None:
    for slot in sample.grads:
        assert all(dtype_name(a.dtype) in ALL_FLOATS and a.size for a in arrays(sample.inputs[slot]))
        if isinstance(op.grad, GradRule):
            assert slot in op.grad.writes


@grouped(("op",), ((op,) for op in SAMPLED if op.grad is not None), family)
def test_every_gradient_is_checked_by_some_sample(op: OpDef) -> None:
    checked = {slot for sample in samples_of(op.type) for slot in sample.grads}
    made = ("X",) if op.input("X") is not None else [slot.name for slot in op.inputs]
    assert checked == set(op.grad.writes if isinstance(op.grad, GradRule) else made) - STATISTICS.get(op.type, set())


# Decompositions ----------------------------------------------------------------------------------------------------


def run_parts(call: Call, inputs: Mapping[str, list[Any]]) -> dict[str, list[Any]] | str:
    """Compute a call by the references of what it is decomposed into."""
    outs = {slot: specs for slot, specs in inferred(call).items() if slot != "XShape"}
    parts = decompose(call.with_outs(outs))
    if isinstance(parts, str):
        return parts
    if any(reference_of(part.call.op.type) is None for part in parts):
        return NO_REFERENCE
    values: dict[tuple[str, str, int], Any] = {("in", s, i): a for s, v in inputs.items() for i, a in enumerate(v)}
    for part in parts:
        given: dict[str, Any] = {}
        names = iter(part.ins)
        for slot, specs in part.call.ins.items():
            group = [values[v.role, v.slot, v.index] for _, v in zip(specs, names, strict=False)]
            definition = part.call.op.input(slot)
            given[slot] = group if definition is not None and definition.duplicable else group[0]
        found = answer(part.call.op, given, part.call.attrs, {})
        made = iter(part.outs)
        for slot, specs in part.call.outs.items():
            for i in range(len(specs)):
                v = next(made)
                values[v.role, v.slot, v.index] = found[slot][i]
    return {slot: [values["out", slot, i] for i in range(len(specs))] for slot, specs in outs.items()}


@each(op for op in SAMPLED if op.decompose is not None)
def test_decompositions_compute_the_same(op: OpDef, sample: Sample) -> None:
    call = call_of(op, sample_specs(op, sample), sample.attrs)
    found = run_parts(call, {slot: [wide(a) for a in arrays(v)] for slot, v in sample.inputs.items()})
    if isinstance(found, str):
        assert found in TAKEN or any(0 in a.shape for v in sample.inputs.values() for a in arrays(v)), found
        return
    exact = answer_sample(op, sample)
    for slot, computed in found.items():
        for a, b in zip(computed, exact[slot], strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)


@each(op for op in SAMPLED if op.decompose is not None and any("float16" in d for d in op.dtypes.values()))
def test_decompositions_make_the_declared_dtypes(op: OpDef, sample: Sample) -> None:
    """Of halves, which are computed in float32, and of none of them."""
    specs = {
        slot: tuple(s.with_(dtype="float16") if s.dtype == "float32" else s for s in some)
        for slot, some in sample_specs(op, sample).items()
    }
    every = [s for some in specs.values() for s in some]
    leading = {d for s in every for d in s.dims[:1]} if all(s.value is None and not s.lod for s in every) else set()
    for gone in (None, *leading):
        given = {
            slot: tuple(s.with_(dims=tuple(0 if d == gone else d for d in s.dims)) for s in some)
            for slot, some in specs.items()
        }
        try:
            call = call_of(op, given, sample.attrs)
            outs = inferred(call)
        except FluidError:
            continue  # the definition takes no such inputs
        parts = decompose(call.with_outs(outs))
        for value in () if isinstance(parts, str) else (value for part in parts for value in part.outs):
            if value.role == "out":
                assert value.spec is not None
                assert value.spec.dtype == outs[value.slot][value.index].dtype


@each(ops.get(type) for type in ("mul", "matmul"))
def test_gradients_of_products_decompose(op: OpDef, sample: Sample) -> None:
    """A product is linear in each operand, so its gradient is known exactly from unit operands."""
    if not sample.grads:
        return
    assert isinstance(op.grad, GradRule)
    grad = ops.get(op.grad.type)
    x, y = wide(sample.inputs["X"]), wide(sample.inputs["Y"])
    specs = sample_specs(op, sample)
    out = answer_sample(op, sample)["Out"][0]
    weight = np.random.default_rng(5).uniform(-1, 1, out.shape)
    call = call_of(grad, {**specs, "Out@GRAD": Spec.of(out.shape, "float32")}, sample.attrs)
    found = run_parts(call, {"X": [x], "Y": [y], "Out@GRAD": [weight]})
    if isinstance(found, str):
        assert (found, sample.attrs.get("alpha", 1) == 1) == (NO_REFERENCE, False) or 0 in out.shape, found
        return
    for slot, operand in (("X", x), ("Y", y)):
        wanted = np.zeros(operand.shape)
        for place in np.ndindex(operand.shape):
            unit = np.zeros(operand.shape)
            unit[place] = 1
            inputs = {"X": x, "Y": y, slot: unit}
            wanted[place] = np.sum(weight * answer(op, inputs, sample.attrs, {})["Out"][0])
        np.testing.assert_allclose(found[slot + GRAD][0], wanted, atol=1e-9)


# Bad input ---------------------------------------------------------------------------------------------------------


def f32(*dims: int, lod_level: int = 0) -> Spec:
    return Spec.of(dims, "float32", lod_level=lod_level)


def i64(*dims: int) -> Spec:
    return Spec.of(dims, "int64")


BAD: list[tuple[str, dict[str, Any], dict[str, Any], type[ProgramError], str]] = [
    ("relu", {"X": i64(3)}, {}, DtypeError, "X"),
    ("elementwise_add", {"X": f32(2, 3), "Y": f32(2)}, {}, ShapeError, "Y"),
    ("elementwise_add", {"X": f32(2, 3), "Y": Spec.of((2, 3), "float64")}, {}, DtypeError, "Y"),
    ("elementwise_floordiv", {"X": f32(2), "Y": f32(2)}, {}, DtypeError, "X"),
    ("elementwise_mul", {"X": f32(3), "Y": f32(2, 2)}, {}, ShapeError, "X"),
    ("logical_and", {"X": f32(2), "Y": f32(2)}, {}, DtypeError, "X"),
    ("clip", {"X": f32(2)}, {"min": 0.0}, AttributeValueError, "max"),
    ("mul", {"X": f32(2, 3), "Y": f32(4, 5)}, {}, ShapeError, "Y"),
    ("mul", {"X": f32(3), "Y": f32(3, 5)}, {}, ShapeError, "X"),
    ("mul", {"X": f32(2, 3), "Y": f32(3, 5)}, {"y_num_col_dims": 2}, ShapeError, "Y"),
    ("mul", {"X": f32(2, 3), "Y": f32(3, 5)}, {"x_num_col_dims": 0}, AttributeValueError, "x_num_col_dims"),
    ("matmul", {"X": f32(2, 3), "Y": f32(2, 3)}, {}, ShapeError, "Y"),
    ("matmul", {"X": f32(2, 3, 4), "Y": f32(5, 4, 2)}, {}, ShapeError, "Y"),
    ("matmul", {"X": f32(), "Y": f32(3)}, {}, ShapeError, "X"),
    ("reduce_sum", {"X": f32(2, 3)}, {"dim": [2]}, AttributeValueError, "dim"),
    ("reduce_sum", {"X": f32(2, 3)}, {"dim": [1, -1]}, AttributeValueError, "dim"),
    ("reduce_mean", {"X": i64(2, 3)}, {}, DtypeError, "X"),
    ("sum", {"X": (f32(2), f32(3))}, {}, ShapeError, "X"),
    ("sum", {"X": (f32(2), i64(2))}, {}, DtypeError, "X"),
    ("softmax", {"X": f32()}, {}, ShapeError, "X"),
    ("softmax", {"X": f32(2, 3)}, {"axis": 2}, AttributeValueError, "axis"),
    ("cross_entropy", {"X": f32(4, 3), "Label": i64(5)}, {}, ShapeError, "Label"),
    ("cross_entropy", {"X": f32(4, 3), "Label": f32(4, 3)}, {}, DtypeError, "Label"),
    ("cross_entropy", {"X": f32(4, 3), "Label": f32(4, 2)}, {"soft_label": True}, ShapeError, "Label"),
    ("softmax_with_cross_entropy", {"Logits": f32(4, 3), "Label": i64(5, 1)}, {}, ShapeError, "Label"),
    ("softmax_with_cross_entropy", {"Logits": f32(4), "Label": i64(1)}, {}, ShapeError, "Logits"),
    ("accuracy", {"Out": f32(4, 1), "Indices": i64(4, 1), "Label": i64(4)}, {}, ShapeError, "Label"),
    ("accuracy", {"Out": f32(4, 2), "Indices": i64(4, 1), "Label": i64(4, 1)}, {}, ShapeError, "Out"),
    ("top_k", {"X": f32(4, 2)}, {"k": 3}, ShapeError, "X"),
    ("top_k", {"X": f32(4, 2)}, {"k": 0}, AttributeValueError, "k"),
    ("gather", {"X": f32(4, 2), "Index": i64(3, 2)}, {}, ShapeError, "Index"),
    ("gather", {"X": f32(4, 2), "Index": f32(3)}, {}, DtypeError, "Index"),
    ("lookup_table", {"W": f32(4, 2), "Ids": i64(3)}, {}, ShapeError, "Ids"),
    ("lookup_table", {"W": f32(4), "Ids": i64(3, 1)}, {}, ShapeError, "W"),
    ("one_hot", {"X": i64(3, 2)}, {"depth": 4}, ShapeError, "X"),
    ("one_hot", {"X": i64(3, 1)}, {}, AttributeValueError, "depth"),
    ("reshape2", {"X": f32(2, 3)}, {"shape": [4]}, AttributeValueError, "shape"),
    ("reshape2", {"X": f32(2, 3)}, {"shape": [-1, 4]}, AttributeValueError, "shape"),
    ("reshape2", {"X": f32(2, 3)}, {"shape": [-1, -1]}, AttributeValueError, "shape"),
    ("reshape2", {"X": f32(2, 3)}, {"shape": [6, 1, 0]}, AttributeValueError, "shape"),
    ("transpose2", {"X": f32(2, 3)}, {"axis": [0, 0]}, AttributeValueError, "axis"),
    ("concat", {"X": (f32(2, 3), f32(2, 4))}, {}, ShapeError, "X"),
    ("concat", {"X": (f32(2, 3), f32(2, 3))}, {"axis": 2}, AttributeValueError, "axis"),
    ("split", {"X": f32(5)}, {"num": 2}, AttributeValueError, "num"),
    ("split", {"X": f32(5)}, {"sections": [2, 2]}, AttributeValueError, "sections"),
    ("split", {"X": f32(5)}, {}, AttributeValueError, "num"),
    ("slice", {"Input": f32(5)}, {"axes": [0], "starts": [1], "ends": []}, AttributeValueError, "ends"),
    ("slice", {"Input": f32(5)}, {"axes": [1], "starts": [1], "ends": [2]}, AttributeValueError, "axes"),
    ("slice", {"Input": f32(5)}, {"axes": [0], "starts": [1], "ends": [4], "decrease_axis": [0]},
     AttributeValueError, "decrease_axis"),
    ("crop", {"X": f32(5, 5)}, {"offsets": [1, 1], "shape": [5, 2]}, ShapeError, "X"),
    ("crop", {"X": f32(5, 5)}, {"shape": [5, 2]}, AttributeValueError, "offsets"),
    ("crop", {"X": f32(5, 5)}, {"offsets": [0, 0]}, AttributeValueError, "shape"),
    ("crop", {"X": f32(5, 5), "Y": f32(2)}, {"offsets": [0, 0]}, ShapeError, "Y"),
    ("cast", {"X": f32(5)}, {"out_dtype": "complex64"}, DtypeError, "complex64"),
    ("cast", {"X": f32(5)}, {"in_dtype": "int64", "out_dtype": "bool"}, AttributeValueError, "in_dtype"),
    ("maxout", {"X": f32(2, 3, 4, 4)}, {"groups": 2}, AttributeValueError, "groups"),
    ("maxout", {"X": f32(2, 3)}, {"groups": 1}, ShapeError, "X"),
    ("maxout", {"X": f32(2, 3, 4, 4)}, {"groups": 1, "axis": 2}, AttributeValueError, "axis"),
    ("dropout", {"X": f32(2, 3)}, {"dropout_prob": 1.5}, AttributeValueError, "dropout_prob"),
    ("dropout", {"X": f32(2, 3)}, {"dropout_implementation": "no"}, AttributeValueError, "dropout_implementation"),
    ("sgd", {"Param": f32(3), "Grad": f32(4), "LearningRate": f32(1)}, {}, ShapeError, "Grad"),
    ("sgd", {"Param": f32(3), "Grad": f32(3), "LearningRate": f32(2)}, {}, ShapeError, "LearningRate"),
    ("momentum", {"Param": f32(3), "Grad": f32(3), "Velocity": f32(2), "LearningRate": f32(1)}, {"mu": 0.9},
     ShapeError, "Velocity"),
    ("fill_constant", {}, {"shape": [-1, 2]}, AttributeValueError, "shape"),
    ("fill_constant", {}, {"shape": [2], "dtype": "no"}, DtypeError, "no"),
    ("uniform_random", {}, {"shape": [2], "dtype": "int64"}, AttributeValueError, "dtype"),
    ("fill_constant_batch_size_like", {"Input": f32(2, 3)}, {"shape": [1], "output_dim_idx": 1},
     AttributeValueError, "output_dim_idx"),
    ("linear_chain_crf", {"Emission": f32(4, 3), "Transition": f32(5, 3), "Label": i64(4, 1)}, {}, ShapeError,
     "Emission"),
    ("linear_chain_crf", {"Emission": f32(4, 3, lod_level=1), "Transition": f32(3, 3), "Label": i64(4, 1)}, {},
     ShapeError, "Transition"),
    ("crf_decoding", {"Emission": f32(4, 3, lod_level=1), "Transition": f32(5, 3), "Label": i64(3, 1)}, {},
     ShapeError, "Label"),
]  # fmt: skip


@pytest.mark.parametrize(("type", "specs", "attrs", "error", "named"), BAD, ids=[f"{b[0]}-{b[4]}" for b in BAD])
def test_bad_input_is_refused(
    type: str, specs: dict[str, Any], attrs: dict[str, Any], error: type[ProgramError], named: str
) -> None:
    with pytest.raises(error) as caught:
        inferred(call_of(ops.get(type), specs, attrs))
    assert named in str(caught.value)


def test_random_operators_infer_from_their_attributes() -> None:
    for type in ("uniform_random", "gaussian_random", "truncated_gaussian_random"):
        attrs = {"shape": [2, 3], "dtype": "float64", "seed": 4}
        assert inferred(call_of(ops.get(type), {}, attrs)) == {"Out": (Spec.of((2, 3), "float64"),)}


def test_a_batch_of_sequences_counts_its_sequences() -> None:
    op = ops.get("fill_constant_batch_size_like")
    data = Spec.of((5, 7), "float32", lod=((0, 2, 5),))
    assert inferred(call_of(op, {"Input": data}, {"shape": [-1, 4]}))["Out"][0].dims == (2, 4)
    assert inferred(call_of(op, {"Input": f32(-1, 7, lod_level=1)}, {"shape": [-1, 4]}))["Out"][0].dims == (-1, 4)


def test_lod_goes_where_rows_stay() -> None:
    x = Spec.of((5, 6), "float32", lod=((0, 2, 5),))

    def lod(type: str, specs: Mapping[str, Any], slot: str = "Out", **attrs: Any) -> Any:
        return inferred(call_of(ops.get(type), specs, attrs))[slot][0].lod

    assert lod("relu", {"X": x}) == x.lod
    assert lod("elementwise_add", {"X": x, "Y": f32(6)}) == x.lod
    assert lod("mul", {"X": x, "Y": f32(6, 3)}) == x.lod
    assert lod("softmax", {"X": x}) == x.lod
    assert lod("reshape2", {"X": x}, shape=[0, 2, 3]) == x.lod
    assert lod("reshape2", {"X": x}, shape=[6, 5]) == ()
    assert lod("transpose2", {"X": x}, axis=[1, 0]) == ()
    assert lod("transpose2", {"X": x}, "XShape", axis=[1, 0]) == x.lod
    assert lod("concat", {"X": (x, x)}, axis=1) == x.lod
    assert lod("concat", {"X": (x, x)}, axis=0) == ((0, 2, 5, 7, 10),)
    assert lod("reduce_sum", {"X": x}, dim=[1]) == x.lod
    assert lod("reduce_sum", {"X": x}, dim=[0]) == ()
    assert lod("cast", {"X": x}, out_dtype="int64") == x.lod
    assert lod("dropout", {"X": x}) == x.lod
