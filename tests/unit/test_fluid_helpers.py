"""Small things that Fluid's programs use: lists of places, kinds of attributes, single elements, readers, norms."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite import core, layers
from fluidlite.base.dtypes import NUMPY
from fluidlite.base.errors import AttributeValueError, DeviceUnavailable, FeedError, ProgramError, TensorError
from fluidlite.program.opdef import OpDef
from fluidlite.program.source_location import NOWHERE


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Give every test new programs, names and scope."""
    main, startup = fluid.Program(), fluid.Program()
    with fluid.unique_name.guard(), fluid.program_guard(main, startup), fluid.scope_guard(fluid.Scope()):
        yield


# The installation --------------------------------------------------------------------------------------------------


def test_lists_of_places(monkeypatch: pytest.MonkeyPatch) -> None:
    assert fluid.cpu_places(3) == [fluid.CPUPlace()] * 3
    assert fluid.cuda_pinned_places(2) == [fluid.CUDAPinnedPlace()] * 2
    assert len(fluid.framework.cpu_places()) >= 1
    monkeypatch.setenv("CPU_NUM", "4")
    assert len(fluid.cpu_places()) == len(fluid.cuda_pinned_places()) == 4
    for bad in (0, True, "2"):
        with pytest.raises(ProgramError, match="an int of 1 or more"):
            fluid.cpu_places(bad)  # type: ignore[arg-type]
    monkeypatch.setenv("CPU_NUM", "many")
    with pytest.raises(ProgramError, match="the variable CPU_NUM is 'many'"):
        fluid.cpu_places()
    if fluid.is_compiled_with_cuda():
        assert fluid.cuda_places([0]) == fluid.cuda_places()[:1] == [fluid.CUDAPlace(0)]
    else:
        with pytest.raises(DeviceUnavailable, match="no cuda place"):
            fluid.cuda_places()


def test_require_version() -> None:
    for good in (("1.1.0",), ("1", "1.8.5"), ("1.8.5",), ("0.14", "2.0")):
        fluid.require_version(*good)
    for bad in (("2.0",), ("1.0", "1.6.0"), ("1.8.5.1",)):
        with pytest.raises(ProgramError, match="requires Fluid"):
            fluid.require_version(*bad)
    with pytest.raises(TypeError, match="min_version"):
        fluid.require_version(1.6)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="max_version"):
        fluid.require_version("1.0", "new")


def test_names_of_the_core() -> None:
    assert not fluid.in_dygraph_mode()
    assert core.empty_var_name() == core.kEmptyVarName() == "@EMPTY@"
    assert core.grad_var_suffix() == core.kGradVarSuffix() == "@GRAD"


# Operators and tensors ---------------------------------------------------------------------------------------------


def test_kinds_of_attributes() -> None:
    layers.fill_constant([2], "float32", 1.0, force_cpu=True)
    layers.dropout(layers.data("x", [3]), 0.5)
    fill, drop = fluid.default_main_program().global_block().ops
    kinds = core.AttrType
    assert (fill.attr_type("value"), fill.attr_type("dtype"), fill.attr_type("shape")) == (
        kinds.FLOAT, kinds.INT, kinds.INTS,
    )  # fmt: skip
    assert drop.attr_type("is_test") is kinds.BOOL
    assert drop.attr_type("dropout_implementation") is kinds.STRING
    drop.set_attr("op_role_var", ["a", "b"])
    assert drop.attr_type("op_role_var") is kinds.STRINGS
    assert [kind.value for kind in (kinds.INT, kinds.BLOCK, kinds.LONGS)] == [0, 8, 11]
    with pytest.raises(AttributeValueError, match="no attribute 'no'"):
        fill.attr_type("no")
    with pytest.raises(AttributeValueError, match="is no block"):
        fill.block_attr("value")


def test_block_attributes() -> None:
    program = fluid.default_main_program()
    inner = program.create_block()
    program.rollback()
    holder = OpDef("holder", (), (), (fluid.Attr("sub_block", "block"),), run=lambda frame, op: None)
    attrs = {"sub_block": inner.idx}
    op = fluid.Operator(program.global_block(), holder, {}, {}, attrs, {}, program.next_id(), "forward", NOWHERE)
    assert op.attr_type("sub_block") is core.AttrType.BLOCK
    assert op.block_attr("sub_block") == op._block_attr_id("sub_block") == 1
    assert op._block_attr("sub_block") is inner


@pytest.mark.parametrize("place", [str(place) for place in fluid.places()])
def test_elements_of_a_tensor(place: str) -> None:
    tensor = fluid.LoDTensor()
    assert not tensor._is_initialized() and tensor._place() is None
    tensor._set_dims([2, 3])
    tensor._alloc_double(place)
    assert (tensor._get_dims(), tensor._dtype()) == ([2, 3], core.VarDesc.VarType.FP64)
    assert tensor._is_initialized() and str(tensor._place()) == place
    for i in range(6):
        tensor._set_double_element(i, i / 4)
    assert tensor._get_double_element(5) == 1.25
    np.testing.assert_array_equal(np.array(tensor), np.arange(6).reshape(2, 3) / 4)
    np.testing.assert_array_equal(np.array(tensor._slice(1, 2)), [[0.75, 1.0, 1.25]])
    other = fluid.LoDTensor()
    other._share_data_with(tensor)
    other._set_float_element(0, 9.0)
    assert tensor._get_float_element(0) == 9.0
    scalar = fluid.LoDTensor()
    scalar._set_dims([])
    scalar._alloc_float(place)
    scalar._set_float_element(0, 0.5)
    assert scalar._get_float_element(0) == 0.5
    number = fluid.LoDTensor()
    number._set_dims([1])
    number._alloc_int(place)
    assert number._dtype() == "int32"
    with pytest.raises(TensorError, match="no element 6; it has 6"):
        tensor._get_float_element(6)


# Feeding -----------------------------------------------------------------------------------------------------------


def feeder() -> fluid.DataFeeder:
    return fluid.DataFeeder([layers.data("x", [2]), layers.data("y", [1], dtype="int64")], "cpu")


BATCH = [([0.5, 1.0], [3]), ([2.0, 4.0], [5])]


def test_feed_parallel() -> None:
    feeds = list(feeder().feed_parallel([BATCH, BATCH[:1]], 2))
    assert [feed["x"].dims for feed in feeds] == [(2, 2), (1, 2)]
    np.testing.assert_array_equal(np.array(feeds[0]["y"]), [[3], [5]])
    with pytest.raises(FeedError, match="1 batches for 2 places"):
        list(feeder().feed_parallel([BATCH], 2))


def test_feed_parallel_on_other_devices(require: Any) -> None:
    require("opencl")
    made = fluid.DataFeeder([layers.data("x", [2])], "opencl:0")
    (feed,) = made.feed_parallel([[([1.0, 2.0],)]])
    assert str(feed["x"].place) == "opencl:0" and str(made.place) == "opencl:0"


def test_decorated_readers() -> None:
    def batches() -> Iterator[Any]:
        yield from ([BATCH] * 3)

    single = list(feeder().decorate_reader(batches, multi_devices=False)())
    assert len(single) == 3 and single[0]["x"].dims == (2, 2)
    several = list(feeder().decorate_reader(batches, True, num_places=2)())
    assert [len(group) for group in several] == [2]
    with pytest.raises(FeedError, match="1 batches for 2 places"):
        list(feeder().decorate_reader(batches, True, num_places=2, drop_last=False)())


def test_weighted_average() -> None:
    average = fluid.average.WeightedAverage()
    with pytest.raises(ValueError, match="nothing to average"):
        average.eval()
    average.add(2.0, 1)
    average.add(value=np.array([4.0, 5.0]), weight=np.array([3]))
    np.testing.assert_allclose(average.eval(), [3.5, 4.25])
    average.reset()
    with pytest.raises(ValueError, match="nothing"):
        average.eval()
    texts, objects = np.array(["1"]), np.array([None])
    for bad in (
        ("1", 1),
        (1, "1"),
        (1, np.ones(2)),
        (texts, 1),
        (1, texts),
        (objects, 1),
        (1j, 1),
        (True, 1),
        (1, None),
    ):
        with pytest.raises(ProgramError, match=r"WeightedAverage\.add"):
            average.add(*bad)
    with pytest.raises(ProgramError, match="value is 1000"):
        average.add(10**400, 1)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "float16", "bfloat16", "float32"])
@pytest.mark.parametrize("weight_dtype", ["int8", "uint8", "float16", "int64"])
def test_weighted_averages_are_of_float64(dtype: str, weight_dtype: str) -> None:
    """Neither products nor sums overflow, nor do small terms vanish, in the dtypes of what is added."""
    average = fluid.average.WeightedAverage()
    values = np.array([100, 5]).astype(NUMPY[dtype])
    for make in (np.array, lambda number, kind: np.array([number], kind), lambda number, kind: kind.type(number)):
        average.reset()
        for _ in range(3000):
            average.add(values, make(100, np.dtype(weight_dtype)))
        assert average.eval().tolist() == [100, 5] and average.eval().dtype == "float64"
    average.reset()
    for _ in range(3000):
        average.add(values[0] if dtype != "bfloat16" else 100, np.dtype(weight_dtype).type(100))
    assert average.eval() == 100


def test_weighted_averages_keep_no_array() -> None:
    average, value, weight = fluid.average.WeightedAverage(), np.zeros(2), np.zeros(1)
    for number, share in ((10.0, 1.0), (20.0, 3.0)):
        value[:], weight[:] = number, share
        average.add(value, weight)
        value[:], weight[:] = 99, 99
    assert average.eval().tolist() == [17.5, 17.5]


def test_inference_program() -> None:
    x = layers.data("x", [2])
    hidden = layers.dropout(layers.fc(x, 3), 0.5)
    loss = layers.mean(hidden)
    fluid.optimizer.SGD(0.1).minimize(loss)
    program = fluid.io.get_inference_program([hidden])
    ops = [op.type for op in program.global_block().ops]
    assert ops == ["mul", "elementwise_add", "dropout"] and program.global_block().ops[-1].attr("is_test")
    with pytest.raises(ProgramError, match="one Variable or more"):
        fluid.io.get_inference_program([3])  # type: ignore[list-item]


# Initializers and attributes of parameters -------------------------------------------------------------------------


def test_init_on_cpu_is_a_hint() -> None:
    force_init_on_cpu, constant = fluid.initializer.force_init_on_cpu, fluid.initializer.Constant
    assert not force_init_on_cpu()
    with fluid.initializer.init_on_cpu():
        assert force_init_on_cpu()
        layers.create_parameter([2], "float32", default_initializer=constant(3.0))
    assert not force_init_on_cpu()
    layers.create_parameter([2], "float32", default_initializer=constant(1.0, force_cpu=True))
    layers.create_parameter([2], "float32", default_initializer=constant(1.0))
    ops = fluid.default_startup_program().global_block().ops
    assert [op.has_attr("force_cpu") and bool(op.attr("force_cpu")) for op in ops] == [True, True, False]


@pytest.mark.parametrize(("dim", "lengths"), [(None, [1, 1]), (0, [3, 1]), (1, [1, 4]), (-1, [1, 4])])
def test_weight_norm(dim: int | None, lengths: list[int]) -> None:
    start = np.random.default_rng(0).normal(size=(3, 4)).astype("float32")
    rows = np.random.default_rng(1).normal(size=(5, 3)).astype("float32")
    attr = fluid.WeightNormParamAttr(dim, "w", fluid.initializer.NumpyArray(start), learning_rate=0.5)
    out = layers.fc(layers.data("x", [3]), 4, param_attr=attr, bias_attr=False)
    loss = layers.mean(layers.square(out))
    _, pairs = fluid.optimizer.SGD(0.2).minimize(loss)
    assert sorted(param.name for param, _ in pairs) == ["w_g", "w_v"]
    assert sum(weight.block is out.block for weight in attr.params_with_weight_norm) == 1
    exe = fluid.Executor("cpu")
    exe.run(fluid.default_startup_program())
    scope = fluid.global_scope()

    def value(name: str) -> np.ndarray:
        return np.array(scope.find_var(name).get_tensor(), "float64")

    axes = (0, 1) if dim is None else (1 - dim % 2,)
    v, g = value("w_v"), value("w_g")
    assert list(g.shape) == lengths
    np.testing.assert_allclose(g, np.sqrt((start**2).sum(axes, keepdims=True)), rtol=1e-6)
    (first,) = exe.run(feed={"x": rows}, fetch_list=[out])
    np.testing.assert_allclose(first, rows @ start, rtol=1e-4, atol=1e-5)
    norm = np.sqrt((v**2).sum(axes, keepdims=True))
    slope = 2 * rows.T @ (rows @ start) / first.size
    along = (slope * v / norm).sum(axes, keepdims=True)
    np.testing.assert_allclose(value("w_g"), g - 0.1 * along, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(value("w_v"), v - 0.1 * g / norm * (slope - along * v / norm), rtol=1e-4, atol=1e-6)
    with pytest.raises(ProgramError, match="dim is 'x'"):
        fluid.WeightNormParamAttr("x")  # type: ignore[arg-type]
    with pytest.raises(ProgramError, match="a dim of the weight"):
        layers.fc(out, 2, param_attr=fluid.WeightNormParamAttr(2))


def test_weights_of_given_norm_keep_no_program() -> None:
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        layers.fc(layers.data("x", [3]), 4, param_attr=fluid.WeightNormParamAttr())
        program = weakref.ref(fluid.default_main_program())
    gc.collect()
    assert program() is None


def test_batches_of_sizes_that_are_numpys() -> None:
    assert list(fluid.batch(lambda: iter(range(3)), np.int64(2))()) == [[0, 1], [2]]  # type: ignore[arg-type]
