"""Sizes at which only what all calls have equal is equal, and loops whose text does not ask what is equal by chance."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite import layers
from fluidlite.expr.calls import infer
from fluidlite.expr.generic_sizes import generic_sizes, generic_value
from fluidlite.expr.number import Condition, Number, apply, number, size
from fluidlite.platform.context_pool import get_context
from fluidlite.program.op_call import Call
from fluidlite.program.registry import ops
from fluidlite.render.loops import kernels
from fluidlite.render.loops.elements import equal_products
from fluidlite.render.loops.sizes import GuardedSizes, Guards, is_equal_size
from fluidlite.tensor.tensor_spec import Spec, specs_of

A, B, C, D = (size(name) for name in "abcd")
NAMES = ["a", "b", "c", "d"]


def equal(a: Number, b: Number | int) -> Condition:
    return Condition("equal", a, number(b))


def test_leaves_differ_unless_they_are_said_to_be_equal() -> None:
    found = generic_sizes(NAMES, [equal(A, B), equal(B, C)])
    assert found["a"] == found["b"] == found["c"] != found["d"]
    assert len(set(generic_sizes(NAMES, []).values())) == 4


@pytest.mark.parametrize("turned", [False, True])
def test_a_leaf_is_what_it_is_said_to_be(turned: bool) -> None:
    said = Condition("equal", (B + 1) // 2, A) if turned else equal(A, (B + 1) // 2)
    found = generic_sizes(NAMES, [said, equal(C, A), equal(D, 7)])
    assert found["a"] == found["c"] == (found["b"] + 1) // 2
    assert found["d"] == 7


def test_of_equal_products_of_as_many_sizes_each_is_the_one_at_its_place() -> None:
    found = generic_sizes(NAMES, [equal(A * B, C * D)])
    assert (found["a"], found["b"]) == (found["c"], found["d"])


def test_usual_divisors_divide() -> None:
    found = generic_sizes(NAMES, [])
    assert generic_value(A // 64 * 64, found) == found["a"]


@pytest.mark.parametrize("n", [size("else"), apply("pow", A, B), Number("attr", (), "a", False), A * size("else")])
def test_what_is_computed_of_anything_else_is_not_known(n: Number) -> None:
    assert generic_value(n, generic_sizes(NAMES, [])) is None


def test_sizes_that_are_equal_by_chance_are_not_alike_and_nothing_is_noted() -> None:
    guards = Guards()
    sizes = GuardedSizes({"a": 8, "b": 8, "c": 8, "d": 9}, guards, generic=generic_sizes(NAMES, [equal(A, C)]))
    assert not is_equal_size(A, B, sizes)
    assert not guards.comparisons
    assert is_equal_size(A, C, sizes)
    assert guards.hold({"a": 5, "b": 8, "c": 5, "d": 9})
    assert not guards.hold({"a": 5, "b": 8, "c": 6, "d": 9})


def test_what_is_taken_to_be_equal_and_is_not_in_the_call_is_not_alike() -> None:
    sizes = GuardedSizes(
        {"a": 2, "b": 6, "c": 3, "d": 4}, Guards(), generic=generic_sizes(NAMES, [equal(A * B, C * D)])
    )
    assert not is_equal_size(A, C, sizes)
    assert is_equal_size(A * B, C * D, sizes)


def test_dims_fall_into_groups_of_equal_products() -> None:
    slices = [((0, 1), (0, 1)), ((1, 3), (1, 2)), ((3, 4), (2, 4))]
    assert equal_products([5, 2, 3, 8], [5, 6, 2, 4]) == [(slice(*a), slice(*b)) for a, b in slices]
    assert equal_products([], []) == []
    assert equal_products([1], []) == [(slice(0, 1), slice(0, 0))]


# Texts


def call_of(type: str, inputs: dict[str, tuple[int, ...]], attrs: dict[str, Any], *outputs: str) -> Call:
    op = ops.get(type)
    ins = {slot: (Spec.of(dims, "float32"),) for slot, dims in inputs.items()}
    filled = {attr.name: attrs.get(attr.name, attr.default) for attr in op.attrs}
    made = infer(Call(op, ins, {}, filled, None, False))
    return Call(op, ins, {slot: specs_of(made[slot]) for slot in outputs}, filled, None, False)


def texts(type: str, inputs: dict[str, tuple[int, ...]], attrs: dict[str, Any], *outputs: str) -> list[str]:
    call = call_of(type, inputs, attrs, *outputs)
    language = get_context(fluid.CPUPlace()).language
    pieces = kernels.write(call, language, kernels.CallNests(call))
    assert pieces is not None
    return [piece.text.body for piece in pieces]


def image_sums(dims: tuple[int, ...]) -> list[str]:
    return texts("reduce_sum", {"X": dims}, {"dim": (0, 1, 2)}, "Out")


def norm(dims: tuple[int, ...]) -> list[str]:
    given = {"X": dims, **{slot: dims[-1:] for slot in ("Scale", "Bias", "Mean", "Variance")}}
    outputs = ("Y", "MeanOut", "VarianceOut", "SavedMean", "SavedVariance")
    return texts("batch_norm", given, {"data_layout": "NHWC"}, *outputs)


def norm_grad(dims: tuple[int, ...]) -> list[str]:
    given = {"X": dims, "Y@GRAD": dims, **{slot: dims[-1:] for slot in ("Scale", "Bias", "Mean", "Variance")}}
    given |= {"SavedMean": dims[-1:], "SavedVariance": dims[-1:]}
    return texts("batch_norm_grad", given, {"data_layout": "NHWC"}, "X@GRAD", "Scale@GRAD", "Bias@GRAD")


@pytest.mark.parametrize("written", [image_sums, norm, norm_grad])
@pytest.mark.parametrize("dims", [(5, 9, 9, 128), (5, 9, 11, 128), (7, 7, 7, 128), (9, 5, 10, 128), (11, 11, 3, 128)])
def test_a_batch_has_the_text_of_another(written: Any, dims: tuple[int, ...]) -> None:
    """Whether it is as long as an image is high, or no image is as high as wide."""
    assert written(dims) == written((7, 10, 6, 128))


def test_gradients_that_are_equal_in_all_calls_share_their_loops() -> None:
    """A gradient has the dims of what it is the gradient of: what reads both is one loop."""
    assert len(norm_grad((7, 10, 6, 128))) == len(norm_grad((7, 7, 7, 128)))
    (body, *_) = norm_grad((7, 10, 6, 128))
    assert "in_X_0[" in body and "in_Y_GRAD_0[" in body


@pytest.mark.parametrize("place", ["cpu", pytest.param("opencl:0", marks=pytest.mark.opencl)])
def test_another_batch_of_a_convolutional_network_compiles_nothing(place: str) -> None:
    image = layers.data("image", [3, 8, 8])
    x = layers.batch_norm(layers.conv2d(image, 256, 3, padding=1, bias_attr=False), "relu")
    x = layers.batch_norm(layers.conv2d(x, 256, 3, padding=1, bias_attr=False), "relu")
    loss = layers.mean(layers.pool2d(x, pool_type="avg", global_pooling=True))
    fluid.optimizer.SGD(0.1).minimize(loss)
    exe = fluid.Executor(place)
    exe.run(fluid.default_startup_program())

    def run(batch: int) -> int:
        (found,) = exe.run(feed={"image": np.ones((batch, 3, 8, 8), "float32")}, fetch_list=[loss])
        assert np.isfinite(found).all()
        return int(exe.cache_info()["compiled kernels"].misses)

    compiled = [run(batch) for batch in (8, 7, 6, 5)]
    assert compiled[1:] == compiled[:1] * 3


def test_how_long_a_vector_is_is_not_asked() -> None:
    guards = Guards()
    sizes = kernels.guarded_sizes(call_of("cumsum", {"X": (5,)}, {"axis": 0}, "Out"), guards)
    assert not guards.comparisons
    kernels.guarded_sizes(call_of("cumsum", {"X": (9, 5)}, {"axis": 0}, "Out"), guards)
    assert guards.hold({**sizes.values, "X.0.0": 7, "X.0.1": 5})
    assert not guards.hold({**sizes.values, "X.0.0": 7, "X.0.1": 9})
