"""What users of nGraph's transformers rely on, statement by statement, on every place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
import fluidlite.graph as ng
import fluidlite.transformers as ngt
from fluidlite.platform.device_registry import devices
from fluidlite.tensor.tensor_spec import Spec
from fluidlite.transformers import (
    Computation,
    DeviceBufferStorage,
    DeviceTensor,
    Graph,
    GraphPass,
    Transformer,
    TransformerFactory,
    make_transformer_factory,
)

PLACES = ("cpu", "opencl", "fpga")
RELIED_ON = """
constant placeholder variable persistent_tensor temporary assign fill set_item sequential value_of deriv
add subtract multiply divide floordivide mod power maximum minimum equal not_equal less less_equal greater greater_equal
negative absolute sqrt square exp log safelog tanh sigmoid relu sign reciprocal sin cos
sum prod max min mean variance any all argmax argmin squared_L2
dot tensor_slice stack concat pad one_hot cast broadcast flatten expand_dims
convolution pooling lookup_table softmax cross_entropy_binary cross_entropy_multi uniform normal
"""


@pytest.fixture
def default_factory() -> Iterator[None]:
    """What a test sets is forgotten."""
    yield
    ngt.set_transformer_factory(None)


# Transformer creation


def test_the_choice_of_a_backend(default_factory: None) -> None:
    available_transformers = ngt.transformer_choices()
    if "gpu" in available_transformers:
        factory = ngt.make_transformer_factory("gpu")
        ngt.set_transformer_factory(factory)
    transformer = ngt.make_transformer()
    wanted = "cuda" if "gpu" in available_transformers else devices.host().kind
    assert transformer.place.kind == wanted


def test_gpu_means_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "kinds", lambda: {"cpu": "", "cuda": "", "tpu": "its driver is missing"})
    assert ngt.transformer_choices() == ["cpu", "gpu"]


def test_each_choice_makes_a_transformer(default_factory: None) -> None:
    for name in ngt.transformer_choices():
        ngt.set_transformer_factory(ngt.make_transformer_factory(name, seed=3))
        with ngt.make_transformer() as transformer:
            assert transformer.place.kind == name.replace("gpu", "cuda")
            assert transformer.seed == 3
            x = ng.placeholder(())
            assert transformer.computation(x * 4, x)(2) == 8


# Computations


def test_the_examples(transformer: Transformer) -> None:
    a = ng.constant(4)
    b = ng.placeholder(())
    c = ng.placeholder(())
    d = ng.multiply(a, b)
    e = ng.add(d, c)

    example_comp = transformer.computation(e, b, c)
    result_e = example_comp(2, 7)
    assert result_e == 15

    example_comp2 = transformer.computation([d, e], b, c)
    result_d, result_e = example_comp2(2, 7)
    assert result_d == 8
    assert result_e == 15
    assert example_comp(2, 7) == 15


def test_initialize_by_hand(transformer: Transformer) -> None:
    v = ng.variable((2,), 1.0)
    before = transformer.computation(v + 1)
    transformer.initialize()
    np.testing.assert_array_equal(transformer.scope.find_var(v.name).get_tensor().numpy(), [1, 1])
    np.testing.assert_array_equal(before(), [2, 2])
    transformer.initialize()
    w = ng.variable((2,), 5.0)
    np.testing.assert_array_equal(transformer.computation(v + w)(), [6, 6])  # made when others have run


def test_further_nodes_become_inputs(transformer: Transformer) -> None:
    """``is_input`` of a value that is computed, and of a variable, which has it."""
    x, v = ng.placeholder((2,)), ng.variable((2,), 1.0)
    middle = ng.exp(x) + v
    with pytest.raises(ValueError, match="is_input"):
        transformer.computation(middle * 2, middle)
    middle.is_input = True
    np.testing.assert_array_equal(transformer.computation(middle * 2, middle)([3, 4]), [6, 8])
    assert v.is_input
    np.testing.assert_array_equal(transformer.computation(v * 2, v)([3, 4]), [6, 8])


def test_state_is_retained_saved_and_stored(transformer: Transformer) -> None:
    x = ng.placeholder((2,))
    w = ng.variable((2,), initial_value=1.0)
    train = transformer.computation([ng.sum(w * x), ng.assign(w, w + x)], x)
    infer = transformer.computation(w * x, x)
    save, store = transformer.computation(w), transformer.computation(None, w)
    train([1, 2])
    train([1, 2])
    np.testing.assert_array_equal(infer([1, 1]), [3, 5])
    kept = save()
    train([10, 10])
    assert store(kept) is None
    np.testing.assert_array_equal(infer([1, 1]), [3, 5])
    np.testing.assert_array_equal(kept, [3, 5])


def test_a_seed_is_a_transformers_own(require: Callable[..., None]) -> None:
    """The same seed draws the same numbers, on every place; another seed others; each call draws anew."""
    drawn = [ng.uniform((700,)), ng.variable((5,), ng.uniform((5,), 2.0, 3.0))]
    gaussian = ng.normal((50,))
    image = fluid.layers.data("image", [3])
    fluid.layers.fc(image, 4, param_attr=fluid.initializer.Uniform())
    (weight, _) = fluid.default_main_program().all_parameters()
    results = [*drawn, fluid.layers.dropout(ng.constant(np.ones(64, "float32")), 0.5), ng.value_of(weight), gaussian]

    def draw(place: str, seed: int) -> list[Any]:
        with make_transformer_factory(place, seed=seed)() as made:
            computation = made.computation(results)
            return [*computation(), *computation()]

    first = draw("cpu", 3)
    for i in range(5):
        assert np.array_equal(first[i], first[i + 5]) == (i in (1, 3)), i
        assert not np.array_equal(first[i], draw("cpu", 4)[i]), i
    for place in PLACES:
        require(place)
        for one, other in zip(first, draw(place, 3), strict=True):
            if one.shape == (50,):
                np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)
            else:
                np.testing.assert_array_equal(one, other)


def test_places_agree_where_they_used_not_to(require: Callable[..., None]) -> None:
    """Integer division and remainders, maxima of -inf, wide and narrow dtypes, odd sizes."""
    i, j = ng.placeholder((7,), "int64"), ng.placeholder((7,), "int64")
    d, h, f = ng.placeholder((5,), "float64"), ng.placeholder((3,), "float16"), ng.placeholder((1,), "bool")
    low = ng.placeholder((3,))
    results = {
        "quotient": i / j, "floored": i // j, "remainder": i % j, "product": i * 1000000007, "sum": ng.sum(i),
        "doubled": d * 2 + 1, "total": ng.sum(d), "three halves": h * 3 + 1, "one flag": ng.any(f),
        "turned": ng.equal(f, f), "largest": ng.max(low), "where": ng.argmax(low, 0), "smallest": ng.min(-low),
    }  # fmt: skip
    given = [
        np.array([7, -7, 7, -7, 2**40, -(2**40), 0]), np.array([2, 2, -2, -2, 3, 7, 5]), np.linspace(-3, 3, 5),
        np.float16([1, 2.5, -3]), np.array([True]), np.full(3, -np.inf),
    ]  # fmt: skip
    wanted = {
        "quotient": [3, -3, -3, 3, 2**40 // 3, -(2**40 // 7), 0], "floored": given[0] // given[1],
        "remainder": given[0] % given[1], "product": given[0] * 1000000007, "sum": given[0].sum(),
        "doubled": given[2] * 2 + 1, "total": given[2].sum(), "three halves": np.float16([4, 8.5, -8]),
        "one flag": True, "turned": [True], "largest": -np.inf, "where": 0, "smallest": np.inf,
    }  # fmt: skip
    for place in PLACES:
        require(place)
        with make_transformer_factory(place)() as made:
            computation = made.computation(results, i, j, d, h, f, low)
            for _ in range(2):
                for name, found in computation(*given).items():
                    np.testing.assert_array_equal(found, wanted[name], f"{name} on {place}")


def test_the_functions_that_are_relied_on() -> None:
    names = RELIED_ON.split()
    assert sorted(set(names) - set(ng.__all__)) == []
    for name in ng.__all__:
        assert getattr(ng, name).__doc__, name


# Transformers of plugins


class Loud(Transformer):
    """Overrides whatever may be, and notes it."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.calls: list[str] = []
        self.register_graph_pass(Looks(self.calls))

    def computation(self, results: Any, *parameters: Any, copy: bool = True) -> Computation:
        self.calls.append("computation")
        return super().computation(results, *parameters, copy=copy)

    def initialize(self) -> None:
        self.calls.append("initialize")
        super().initialize()

    def run_registered_graph_passes(self, graph: Graph) -> None:
        self.calls.append("run_registered_graph_passes")
        super().run_registered_graph_passes(graph)

    def transform_ordered_ops(self, computation: Any, ordered_ops: Any) -> Any:
        self.calls.append(f"transform_ordered_ops {[op.type for op in ordered_ops]}")
        return super().transform_ordered_ops(computation, ordered_ops)

    def allocate(self, state: Any = None) -> None:
        self.calls.append("allocate")
        super().allocate(state)

    def allocate_storage(self, state: Any) -> None:
        state = list(state)
        self.calls.append(f"allocate_storage of {len(state)}")
        super().allocate_storage(state)

    def set_state(self, variable: Any, value: Any) -> None:
        self.calls.append(f"set_state {value.ravel()[0]}")
        super().set_state(variable, value)

    def device_buffer_storage(self, context: Any) -> DeviceBufferStorage:
        self.calls.append("device_buffer_storage")
        return super().device_buffer_storage(context)

    def start_transform_allocate(self) -> None:
        self.calls.append(f"start_transform_allocate {sum(buffer.nbytes for buffer in self.device_buffers)}")
        super().start_transform_allocate()

    def finish_transform_allocate(self) -> None:
        assert all(buffer.nbytes >= buffer.needed > 0 for buffer in self.device_buffers)
        self.calls.append("finish_transform_allocate")
        super().finish_transform_allocate()

    def device_tensor(self, storage: DeviceBufferStorage, spec: Spec, offset: int) -> Any:
        assert offset + spec.nbytes <= storage.nbytes
        self.calls.append("device_tensor")
        made = super().device_tensor(storage, spec, offset)
        assert isinstance(made, DeviceTensor)
        return made

    def run(self, computation: Computation, given: Any, unset: Any) -> Any:
        self.calls.append("run")
        return super().run(computation, given, unset)

    def close(self) -> None:
        self.calls.append("close")
        super().close()


class Looks(GraphPass):
    """Changes nothing."""

    def __init__(self, calls: list[str]) -> None:
        self.calls = calls

    def do_pass(self, graph: Graph) -> None:
        self.calls.append("do_pass")


@pytest.mark.parametrize("place", PLACES)
def test_what_a_transformer_may_override(place: str, default_factory: None, require: Callable[..., None]) -> None:
    require(place)
    ngt.set_transformer_factory(TransformerFactory("loud", Loud, place=place))
    with ngt.make_transformer() as made:
        assert isinstance(made, Loud)
        x, v = ng.placeholder((2,)), ng.variable((2,), 4.0)
        step = made.computation(ng.exp(x) + v, x)
        np.testing.assert_array_equal(step([0, 0]), [5, 5])
        once = ["computation", "run", "initialize", "run_registered_graph_passes", "do_pass"]
        assert made.calls[:5] == once
        assert made.calls[5].startswith("transform_ordered_ops ['")
        assert made.calls[6:9] == ["allocate", "allocate_storage of 1", "set_state 4.0"]
        memory = list(dict.fromkeys(call for call in made.calls[9:] if not call.startswith("allocate")))
        steps = ["start_transform_allocate 0", "finish_transform_allocate", "device_tensor"]
        assert memory == ["device_buffer_storage", *steps]
        assert made.device_buffers
        made.calls.clear()
        for _ in range(3):
            np.testing.assert_array_equal(step([0, 0]), [5, 5])
        assert made.calls == ["run"] * 3
    assert made.calls[-1] == "close"


def test_allocation_of_ones_own_may_fail_and_forget(cpu: Transformer) -> None:
    """What a step raises is the call's error, and the next call tries again; a buffer that stays empty is refused."""
    x = ng.placeholder((3,))

    class Fails(Transformer):
        """Has no memory at first."""

        tries = 0

        def start_transform_allocate(self) -> None:
            self.tries += 1
            if self.tries == 1:
                raise OSError("not yet")

    with Fails() as made:
        double = made.computation(ng.exp(x) + x, x)
        with pytest.raises(OSError, match="not yet"):
            double([0, 0, 0])
        np.testing.assert_array_equal(double([0, 0, 0]), [1, 1, 1])
        assert made.tries == 2

    class Empty(DeviceBufferStorage):
        """Allocates nothing."""

        def transform_allocate(self) -> None:
            """Do nothing."""

    class Forgets(Transformer):
        """Its storages stay empty."""

        def device_buffer_storage(self, context: Any) -> DeviceBufferStorage:
            return Empty(context)

    with Forgets() as made:
        double = made.computation(ng.exp(x) + x, x)
        with pytest.raises(ValueError, match=r"was not allocated; expected \d+ bytes"):
            double([0, 0, 0])


def test_initialize_of_ones_own_may_fail_and_call(cpu: Transformer) -> None:
    v = ng.variable((), 1.0)

    class Begins(Transformer):
        """Counts up when it begins."""

        tries = 0

        def initialize(self) -> None:
            super().initialize()
            self.tries += 1
            if self.tries == 1:
                raise OSError("not yet")
            self.computation(ng.assign(v, v + 1))()

    with Begins() as made:
        read = made.computation(v)
        with pytest.raises(OSError, match="not yet"):
            read()
        assert read() == 2
        assert read() == 2
        assert made.tries == 2


@pytest.mark.parametrize("sets", [False, True], ids=["returned", "set"])
def test_an_executor_of_ones_own(sets: bool) -> None:
    """Whatever can be called runs a computation; it needs no memory plan."""

    class Fixed(Transformer):
        """Always answers 7."""

        def transform_ordered_ops(self, computation: Any, ordered_ops: Any) -> Any:
            def seven(arguments: Any) -> list[Any]:
                return [np.float32(7)] * len(computation.fetches)

            if not sets:
                return seven
            computation.executor = seven
            return None

    with Fixed() as made:
        x = ng.placeholder(())
        computation = made.computation(ng.exp(x), x)
        assert computation(1) == 7
        assert callable(computation.executor)
        with pytest.raises(ValueError, match="has no memory plan"):
            _ = computation.memory_plan


@pytest.mark.parametrize("given", [None, 3])
def test_an_executor_that_cannot_be_called(given: Any) -> None:
    class Gives(Transformer):
        """Forgets the executor."""

        def transform_ordered_ops(self, computation: Any, ordered_ops: Any) -> Any:
            return given

    with Gives() as made:
        computation = made.computation(ng.constant(2.0) * 3)
        for _ in range(2):
            with pytest.raises(ValueError, match=f"transform_ordered_ops of Gives gave {given} as executor"):
                computation()


class ManyResults(Transformer):
    """Its executors give too much."""

    def transform_ordered_ops(self, computation: Any, ordered_ops: Any) -> Any:
        return lambda arguments: [np.ones(2)] * 5


class NoTensor(Transformer):
    """It has no tensors."""

    def device_tensor(self, storage: DeviceBufferStorage, spec: Spec, offset: int) -> Any:
        return None


class NoStorage(Transformer):
    """It has no memory."""

    def device_buffer_storage(self, context: Any) -> Any:
        return None


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (ManyResults, "its executor gave 5 arrays for 1 results"),
        (NoTensor, "device_tensor gave None; expected a DeviceTensor"),
        (NoStorage, "device_buffer_storage gave None; expected a DeviceBufferStorage"),
    ],
)
def test_methods_that_give_something_else(kind: type[Transformer], text: str) -> None:
    with kind() as made:
        x = ng.placeholder((2,))
        computation = made.computation(ng.exp(x) + 1, x)
        for _ in range(2):
            with pytest.raises(fluid.errors.FluidError, match=text):
                computation([1, 2])


def test_a_factory_that_makes_no_transformer(default_factory: None) -> None:
    ngt.set_transformer_factory(lambda **options: 3)  # type: ignore[arg-type, return-value]
    with pytest.raises(ValueError, match="made 3; expected a Transformer"):
        ngt.make_transformer()
