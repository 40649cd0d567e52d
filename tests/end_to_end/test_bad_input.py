"""Bad input: each is one clear error on every place, nothing is lost, and the next run works."""

# ruff: noqa: E501  the tables hold whole messages, a line each

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.base.errors import (
    AttributeValueError,
    DeviceUnavailable,
    DtypeError,
    FeedError,
    FetchError,
    FluidError,
    OperatorNotFoundError,
    OutOfRangeError,
    PlaceError,
    ProgramError,
    ShapeError,
)

layers = fluid.layers
KINDS = ("cpu", "opencl", "fpga", *{where.kind for where in fluid.places() if where.kind == "cuda"})
HERE = r"test_bad_input\.py:\d+"


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, require: Callable[..., None]) -> str:
    require(request.param)
    return f"{request.param}:0"


# --- while the program is built --------------------------------------------------------------------------------------


@pytest.fixture
def block() -> Any:
    program = fluid.Program()
    with fluid.program_guard(program, fluid.Program()):
        for name, dims, dtype in (("x", [-1, 3], "float32"), ("y", [-1, 4], "float32"), ("i", [-1, 1], "int64")):
            layers.data(name, dims, dtype=dtype, append_batch_size=False)
        yield program.global_block()


def op(type: str, inputs: dict[str, Any], attrs: dict[str, Any] | None = None, outs: tuple[str, ...] = ("Out",)) -> Any:
    def append(block: Any) -> None:
        block.append_op(type, inputs, {slot: block.create_var() for slot in outs}, attrs)

    return append


BUILDING = {
    "unknown operator": (op("rellu", {"X": "x"}), OperatorNotFoundError, "no operator is called 'rellu'; did you mean 'relu'"),
    "unknown input slot": (op("relu", {"Y": "x"}), ProgramError, rf"operator relu \({HERE}.* no input slot 'Y'; it has X"),
    "unknown output slot": (op("relu", {"X": "x"}, outs=("Oot",)), ProgramError, rf"relu \({HERE}.* no output slot 'Oot'; it has Out"),
    "missing input slot": (op("relu", {}), ProgramError, rf"relu \({HERE}.*input slot 'X' is missing"),
    "unknown attribute": (op("relu", {"X": "x"}, {"alpha": 1}), AttributeValueError, rf"relu \({HERE}.* has no attribute 'alpha'"),
    "type of a float": (op("scale", {"X": "x"}, {"scale": "big"}), AttributeValueError, rf"scale \({HERE}.*'scale' is 'big'; expected a float"),
    "type of ints": (
        op("transpose2", {"X": "x"}, {"axis": [0.5, 1]}, ("Out", "XShape")), AttributeValueError, r"'axis' is \[0.5, 1\]; expected a list of int",
    ),
    "bool for an int": (op("top_k", {"X": "x"}, {"k": True}, ("Out", "Indices")), AttributeValueError, "'k' is True; expected an int"),
    "above a range": (
        op("dropout", {"X": "x"}, {"dropout_prob": 1.5}, ("Out", "Mask")), AttributeValueError, "'dropout_prob' is 1.5; expected 1.0 or less",
    ),
    "below a range": (op("top_k", {"X": "x"}, {"k": 0}, ("Out", "Indices")), AttributeValueError, "'k' is 0; expected 1 or more"),
    "NaN in a range": (op("dropout", {"X": "x"}, {"dropout_prob": float("nan")}, ("Out", "Mask")), AttributeValueError, "dropout_prob"),
    "beyond a float": (op("scale", {"X": "x"}, {"scale": 10**400}), AttributeValueError, "'scale'"),
    "no permutation": (
        op("transpose2", {"X": "x"}, {"axis": [0, 2]}, ("Out", "XShape")), AttributeValueError, rf"transpose2 \({HERE}.*permutation of \[0, 1\]",
    ),
    "unknown dtype": (op("cast", {"X": "x"}, {"in_dtype": "float32", "out_dtype": "float99"}), DtypeError, "'float99' is not a data type"),
    "several for one": (op("relu", {"X": ["x", "y"]}), ProgramError, "slot 'X' takes one variable, got 2"),
    "no variable": (op("relu", {"X": 3}), ProgramError, "slot 'X' got int 3; expected a variable or its name"),
    "unknown variable": (op("relu", {"X": "nope"}), ProgramError, rf"relu \({HERE}.* variable 'nope', which the block does not have"),
    "dtype": (op("softmax", {"X": "i"}), DtypeError, rf"softmax \({HERE}.*X is int64\[-1, 1\]; expected dtype float16"),
    "two dtypes": (op("elementwise_add", {"X": "x", "Y": "i"}), DtypeError, r"Y is int64\[-1, 1\]; expected dtype float32, as X"),
    "shapes of add": (op("elementwise_add", {"X": "x", "Y": "y"}), ShapeError, rf"elementwise_add \({HERE}.*Y is float32\[-1, 4\]; expected dims"),
    "shapes of concat": (op("concat", {"X": ["x", "y"]}, {"axis": 0}), ShapeError, "expected tensors of equal dims, but for axis 0"),
    "axis of concat": (op("concat", {"X": ["x", "y"]}, {"axis": 5}), AttributeValueError, "'axis' is 5; expected an axis in"),
    "too few columns": (op("top_k", {"X": "x"}, {"k": 7}, ("Out", "Indices")), ShapeError, r"top_k \(.*X is float32\[-1, 3\]; expected at least k = 7"),
    "dtype of ids": (op("lookup_table", {"W": "x", "Ids": "y"}), DtypeError, r"Ids is float32\[-1, 4\]; expected dtype int32, int64"),
}  # fmt: skip


@pytest.mark.parametrize("name", BUILDING)
def test_building(block: Any, name: str) -> None:
    append, error, message = BUILDING[name]
    with pytest.raises(error, match=message) as caught:
        append(block)
    assert type(caught.value) is error
    assert isinstance(caught.value, FluidError)
    assert block.ops == []  # the block stays as it was
    op("relu", {"X": "x"})(block)
    assert len(block.ops) == 1


def test_unknown_places() -> None:
    for text in ("nowhere", "nowhere:3", "CPU", "cpu:-1", "cpu:1x", "", ":0", 3, None, b"cpu"):
        with pytest.raises(PlaceError):
            fluid.Executor(text)  # type: ignore[arg-type]
    with pytest.raises(PlaceError, match="place cpu:7 does not exist: kind 'cpu' has 1 device"):
        fluid.Executor("cpu:7")
    with pytest.raises(PlaceError, match="did you mean 'cpu'"):
        fluid.Executor("cppu")
    if not any(where.kind == "cuda" for where in fluid.places()):
        with pytest.raises(DeviceUnavailable, match="cuda cannot be used here: "):
            fluid.Executor(fluid.CUDAPlace(0))


# --- while a program runs --------------------------------------------------------------------------------------------


@dataclass
class Training:
    """A classifier that trains; ``state()`` is all that it keeps."""

    place: str
    main: Any = field(default_factory=fluid.Program)
    startup: Any = field(default_factory=fluid.Program)
    scope: Any = field(default_factory=fluid.Scope)

    def __post_init__(self) -> None:
        self.main.random_seed = self.startup.random_seed = 11
        with fluid.program_guard(self.main, self.startup), fluid.unique_name.guard():
            x = layers.data("x", [4])
            label = layers.data("label", [1], dtype="int64")
            hidden = layers.fc(x, 8, act="relu")
            self.loss = layers.mean(layers.softmax_with_cross_entropy(layers.fc(hidden, 3), label))
            fluid.optimizer.Adam(0.1).minimize(self.loss)
        self.exe = fluid.Executor(self.place, fallback="allow")
        self.exe.run(self.startup, scope=self.scope)
        self.x = np.random.default_rng(2).standard_normal((5, 4)).astype("float32")
        self.label = np.asarray([[0], [1], [2], [0], [1]])

    def run(self, fetch: Any = None, **feed: Any) -> float:
        given = {"x": self.x, "label": self.label, **feed}
        given = {name: value for name, value in given.items() if value is not ...}
        return float(self.exe.run(self.main, given, [self.loss] if fetch is None else fetch, scope=self.scope)[0][0])

    def state(self) -> dict[str, Any]:
        names = [variable.name for variable in self.main.list_vars() if variable.persistable]
        return {name: self.scope.find_var(name).get_tensor().numpy().copy() for name in names}


def labels(value: int) -> np.ndarray[Any, Any]:
    return np.asarray([[0], [1], [value], [0], [1]])


RUNNING = {
    "missing feed": ({"label": ...}, FeedError, rf"operator softmax_with_cross_entropy \({HERE}.*'label'.* the feed has no 'label'"),
    "extra feed": ({"more": np.zeros(3)}, FeedError, "the feed names 'more', which the program does not have; its data variables are x, label"),
    "shape": ({"x": np.zeros((5, 3), "float32")}, FeedError, r"'x' has dims \[5, 3\]; the program declares \[-1, 4\]"),
    "rank": ({"x": np.zeros(4, "float32")}, FeedError, r"'x' has dims \[4\]; the program declares \[-1, 4\]\n  Do: .*batch dimension"),
    "rank of labels": ({"label": np.zeros(5, "int64")}, FeedError, r"declares \[-1, 1\]\n  Do: array.reshape\(-1, 1\)"),
    "dtype": ({"x": np.zeros((5, 4))}, FeedError, r"'x' is float64\[5, 4\]; the program declares float32\[-1, 4\]\n  Do: array.astype\('float32'\)"),
    "dtype of labels": ({"label": np.zeros((5, 1), "float32")}, FeedError, "'label' is float32"),
    "two batches": ({"label": np.zeros((3, 1), "int64")}, ShapeError, rf"softmax_with_cross_entropy \({HERE}.*Label is int64\[3, 1\]; expected \[5, 1\]"),
    "ragged": ({"x": [[1.0, 2.0], [3.0]]}, FeedError, "'x' cannot become an array"),
    "numbers beyond the dtype": ({"label": [[2**64 - 1]] * 5}, FeedError, "'label' holds numbers that are no int64"),
    "a number beyond the dtype beside an infinity": ({"x": [[np.inf, 1e300, 0.0, 0.0]] * 5}, FeedError, "'x' holds numbers that are no float32"),
    "fractions for integers": ({"label": [[0.5]] * 5}, FeedError, "'label' holds numbers that are no int64"),
    "objects": ({"x": np.asarray([None] * 4)}, FeedError, "'x' holds Python objects"),
    "text": ({"x": "four numbers"}, FeedError, "'x' is str; expected an array"),
    "array of text": ({"x": np.asarray([["a"] * 4])}, (FeedError, DtypeError), "is not a data type|'x'"),
    "nothing": ({"x": None}, FeedError, "'x' is NoneType; expected an array"),
    "complex": ({"x": np.zeros((5, 4), "complex64")}, (FeedError, DtypeError), "complex64"),
    "empty tensor": ({"x": fluid.Tensor()}, FeedError, "'x' is a tensor without data"),
    "label too high": ({"label": labels(3)}, OutOfRangeError, rf"^operator softmax_with_cross_entropy \({HERE}.*index 3 is out of range; expected 0 to 2"),
    "label too low": ({"label": labels(-1)}, OutOfRangeError, r"^operator softmax_with_cross_entropy .*index -1 is out of range"),
    "unknown fetch": ({"fetch": ["nope"]}, FetchError, "'nope', which the program does not have"),
    "fetch of a number": ({"fetch": [3]}, FetchError, "fetch_list holds 3; expected variables or names"),
}  # fmt: skip


@pytest.fixture(scope="module")
def trainings() -> dict[str, Training]:
    return {}


@pytest.mark.parametrize("name", RUNNING)
def test_running(place: str, name: str, trainings: dict[str, Training]) -> None:
    training = trainings.get(place)
    if training is None:
        training = trainings[place] = Training(place)
        training.run()
    changes, error, message = RUNNING[name]
    before = training.state()
    with pytest.raises(error, match=message):
        training.run(**changes)
    after = training.state()
    assert [key for key in before if not np.array_equal(before[key], after[key])] == []
    assert np.isfinite(training.run())  # the next run works, and it trains
    assert not np.array_equal(before["fc_0.w_0"], training.state()["fc_0.w_0"])


def test_a_program_that_was_not_initialised(place: str) -> None:
    training = Training(place)
    with pytest.raises(
        ProgramError,
        match=rf"operator (fused\.)?mul\w* \({HERE}.*'fc_0.w_0' has no value in the scope\n  Do: run the startup program",
    ):
        training.exe.run(
            training.main, {"x": training.x, "label": training.label}, [training.loss], scope=fluid.Scope()
        )
    assert np.isfinite(training.run())


def test_a_wrong_program_or_feed(place: str) -> None:
    exe = fluid.Executor(place)
    with pytest.raises(ProgramError, match="takes a Program, got str"):
        exe.run("main")  # type: ignore[arg-type]
    with pytest.raises(ProgramError, match="the feed is int; expected a mapping"):
        exe.run(fluid.Program(), feed=3)  # type: ignore[arg-type]
    exe.close()
    with pytest.raises(ProgramError, match="closed"):
        exe.run(fluid.Program())


@pytest.mark.parametrize("bad", [6, 2**31 - 1, -1, -(2**31)])
@pytest.mark.parametrize(
    "type", ["gather", "lookup_table", "one_hot", "cross_entropy", "gather_grad", "lookup_table_grad"]
)
def test_an_index_out_of_range(place: str, type: str, bad: int) -> None:
    program = fluid.Program()
    with fluid.program_guard(program, fluid.Program()):
        w = layers.data("w", [6, 6], append_batch_size=False, stop_gradient=False)
        flat = type.startswith("gather")
        ids = layers.data("ids", [2] if flat else [2, 1], dtype="int64", append_batch_size=False)
        block = program.global_block()
        out = block.create_var()
        feed: dict[str, Any] = {"w": np.arange(36, dtype="float32").reshape(6, 6) + 1}
        match type.removesuffix("_grad"):
            case "gather":
                block.append_op("gather", {"X": w, "Index": ids}, {"Out": out})
            case "lookup_table":
                block.append_op("lookup_table", {"W": w, "Ids": ids}, {"Out": out})
            case "one_hot":
                block.append_op("one_hot", {"X": ids}, {"Out": out}, {"depth": 6})
            case _:
                rows = layers.slice(w, [0], [0], [2])
                block.append_op("cross_entropy", {"X": rows, "Label": ids}, {"Y": out})
        if type.endswith("_grad"):
            start = layers.data("start", out.shape, append_batch_size=False)
            feed["start"] = np.ones(out.shape, "float32")
            (out,) = fluid.gradients([out], [w], [start])
    exe = fluid.Executor(place, fallback="allow")
    dims = (2,) if flat else (2, 1)
    feed["ids"] = np.asarray([1, bad]).reshape(dims)
    message = rf"^operator {type} \({HERE}.*index {bad} is out of range; expected 0 to 5"
    with pytest.raises(OutOfRangeError, match=message) as caught:
        exe.run(program, feed, [out])
    assert str(caught.value).count("operator ") <= 2  # itself, and "operators after it wrote no state"
    feed["ids"] = np.asarray([1, 5]).reshape(dims)
    assert exe.run(program, feed, [out])[0].size


def state_writers(guard: str | None) -> Any:
    """Operators that write state after a gather: generated, generic, and perhaps on another place."""
    program = fluid.Program()
    with fluid.program_guard(program, fluid.Program()):
        w = layers.data("w", [6, 2], append_batch_size=False)
        ids = layers.data("ids", [-1], dtype="int32", append_batch_size=False)
        block = program.global_block()
        picked = layers.mean(layers.gather(w, ids))
        for name, dims in (("added", [1]), ("scaled", [1]), ("assigned", [1]), ("summed", [2])):
            block.create_var(name, dims, "float32", persistable=True)
        with fluid.device_guard(guard):
            block.append_op("scale", {"X": "scaled"}, {"Out": "scaled"}, {"scale": 2.0})
            block.append_op("elementwise_add", {"X": "added", "Y": picked}, {"Out": "added"})
            block.append_op("assign", {"X": picked}, {"Out": "assigned"})
            block.append_op("reduce_sum", {"X": w}, {"Out": "summed"}, {"dim": [0]})
    return program


@pytest.mark.parametrize("guard", [None, "cpu"])
@pytest.mark.parametrize("fetch", [(), ("scaled",)])
def test_no_state_is_written_after_an_index_out_of_range(place: str, guard: str | None, fetch: tuple[str, ...]) -> None:
    program = state_writers(guard)
    scope = fluid.Scope()
    exe = fluid.Executor(place, fallback="allow")
    for name, dims in (("added", 1), ("scaled", 1), ("assigned", 1), ("summed", 2)):
        scope.var(name).get_tensor().set(np.full(dims, 7, "float32"), place)
    w = np.ones((6, 2), "float32")
    with pytest.raises(OutOfRangeError, match=r"^operator gather .*index 9 is out of range"):
        exe.run(program, {"w": w, "ids": np.asarray([1, 9], "int32")}, list(fetch), scope=scope)

    def values() -> dict[str, list[float]]:
        return {
            name: scope.find_var(name).get_tensor().numpy().tolist()
            for name in ("added", "scaled", "assigned", "summed")
        }

    assert values() == {"added": [7], "scaled": [7], "assigned": [7], "summed": [7, 7]}
    exe.run(program, {"w": w, "ids": np.asarray([1, 2], "int32")}, list(fetch), scope=scope)
    assert values() == {"added": [8], "scaled": [14], "assigned": [1], "summed": [6, 6]}


# --- zero-size and scalar tensors are right answers ------------------------------------------------------------------


def test_an_empty_batch(place: str) -> None:
    training = Training(place)
    before = training.state()
    assert np.isnan(training.run(x=training.x[:0], label=training.label[:0]))  # the mean of nothing
    after = training.state()
    assert all(np.isfinite(value).all() for value in after.values())  # gradients are sums over nothing: zeros
    np.testing.assert_array_equal(before["fc_0.w_0"], after["fc_0.w_0"])
    assert np.isfinite(training.run())


def test_zero_size_tensors_flow(place: str) -> None:
    program = fluid.Program()
    with fluid.program_guard(program, fluid.Program()):
        x = layers.data("x", [-1, 3], append_batch_size=False)
        y = layers.relu(x)
        total = layers.reduce_sum(y, dim=[0])
        both = layers.concat([x, y], axis=0)
        flat = layers.reshape(both, [-1])
        scaled = layers.scale(flat, 2.0)
        best = layers.reduce_sum(scaled)
    exe = fluid.Executor(place, fallback="allow")
    out = exe.run(program, {"x": np.zeros((0, 3), "float32")}, [y, total, both, flat, best])
    assert [array.shape for array in out[:4]] == [(0, 3), (3,), (0, 3), (0,)]
    assert out[1].tolist() == [0, 0, 0]
    assert out[4].tolist() == [0]
    out = exe.run(program, {"x": np.ones((2, 3), "float32")}, [total, best])
    assert [out[0].tolist(), out[1].tolist()] == [[2, 2, 2], [24]]


def test_scalar_tensors_flow(place: str) -> None:
    program = fluid.Program()
    with fluid.program_guard(program, fluid.Program()):
        x = layers.data("x", [], append_batch_size=False)
        y = layers.data("y", [2, 2], append_batch_size=False)
        doubled = layers.scale(x, 2.0)
        added = layers.elementwise_add(y, x)
    exe = fluid.Executor(place, fallback="allow")
    feed = {"x": np.float32(3).reshape(()), "y": np.ones((2, 2), "float32")}
    one, two = exe.run(program, feed, [doubled, added])
    assert one.shape == ()
    assert float(one) == 6
    assert two.tolist() == [[4, 4], [4, 4]]
