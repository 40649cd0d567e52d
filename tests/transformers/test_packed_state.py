"""Weights in the form that a kernel reads are kept from run to run, and never stale, however the weight is written."""

from __future__ import annotations

import ctypes
import gc
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite import layers, memory
from fluidlite.compiler.executable import packed_state
from fluidlite.compiler.executable.launch_report import launch_groups
from fluidlite.platform.device_registry import devices
from fluidlite.plugin import IO, Call, Context, DeviceError, Library, Prepared, Span
from fluidlite.program.kernel_registry import Kernel, kernels

PLACES = ("cpu", "opencl:0")
KINDS = ("conv2d", "conv2d_transpose", "matmul")
F32 = "float32"
Values = np.ndarray[Any, Any]


@pytest.fixture(autouse=True)
def _collected() -> Iterator[None]:
    gc.collect()
    yield


class Case:
    """A program that reads a weight by a kernel that packs it, and those that write it."""

    def __init__(self, place: str, kind: str = "conv2d", before: Callable[[], None] | None = None) -> None:
        self.place, self.kind, self.scope, self.number = place, kind, fluid.Scope(), 0
        self.dims = {"conv2d": (8, 3, 3, 3), "conv2d_transpose": (3, 8, 3, 3), "matmul": (8, 12)}[kind]
        self.main, self.startup = fluid.Program(), fluid.Program()
        with fluid.program_guard(self.main, self.startup):
            rows = -1 if before is None else 2  # what a host function gives is planned with it if its dims are known
            x = layers.data("x", [rows, 12] if kind == "matmul" else [rows, 3, 10, 10], append_batch_size=False)
            weight = layers.create_parameter(list(self.dims), F32, name="w")
            if before is not None:
                x = self._call(x, before)
            if kind == "matmul":
                self.out = layers.matmul(x, weight, transpose_y=True)
            else:
                self.out = getattr(layers, kind)(x, 8, filter_size=3, param_attr="w", bias_attr=False)
        rng = np.random.default_rng(5)
        self.x = rng.standard_normal((2, 12) if kind == "matmul" else (2, 3, 10, 10)).astype(F32)
        self.exe = fluid.Executor(place, libraries={"cpu": ["registers"]})
        self.exe.run(self.startup, scope=self.scope)

    def _call(self, x: Any, function: Callable[[], None]) -> Any:
        seen = fluid.default_main_program().global_block().create_var(name="seen", dtype=F32, shape=x.shape)

        def called(array: Any) -> Any:
            function()
            return np.asarray(array)

        return layers.py_func(called, x, seen)

    @property
    def weight(self) -> fluid.Tensor:
        tensor: fluid.Tensor = self.scope.find_var("w").get_tensor()
        return tensor

    def values(self) -> Values:
        """Other numbers at each call."""
        self.number += 1
        return np.random.default_rng(self.number).standard_normal(self.dims).astype(F32)

    def run(self) -> Values:
        (found,) = self.exe.run(self.main, {"x": self.x}, [self.out], scope=self.scope)
        return np.asarray(found)

    def check(self, expected: Values) -> None:
        """Run, and hold it against the interpreter with these numbers as its weight."""
        found = self.run()
        scope = fluid.Scope()
        scope.var("w").get_tensor().set(expected, self.place)
        interpreter = fluid.Executor(self.place, mode="interpreted")
        with fluid.program_guard(fluid.Program()):
            (wanted,) = interpreter.run(self.main, {"x": self.x}, [self.out], scope=scope)
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)

    def writer(self, make: Callable[[Any, Any], Any]) -> Callable[[Values], None]:
        """A program that writes the weight from a feed."""
        program = fluid.Program()
        with fluid.program_guard(program, fluid.Program()):
            given = layers.data("given", list(self.dims), append_batch_size=False)
            held = layers.create_parameter(list(self.dims), F32, name="w")
            make(given, held)
        executor = fluid.Executor(self.place)
        return lambda values: executor.run(program, {"given": values}, [], scope=self.scope)


BOTH = [(place, kind) for place in PLACES for kind in KINDS if (place, kind) != ("cpu", "matmul")]
"""The products of the cpu are cblas's, which packs by itself."""


@pytest.fixture(params=BOTH, ids="-".join)
def case(request: pytest.FixtureRequest) -> Case:
    place, kind = request.param
    if fluid.Place.parse(place) not in devices.places():
        pytest.skip(place)
    made = Case(place, kind)
    for _ in range(3):
        values = made.values()
        made.weight.set(values, place)
        made.check(values)
    assert len(forms(made.weight)) == 1
    return made


def forms(weight: fluid.Tensor) -> list[Any]:
    """The forms of a weight that are kept."""
    return [form for form in list(packed_state._copies.values()) if form._source is weight.allocation]


def packs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that gets an entry whenever a form is looked at: whether it was made again."""
    made: list[int] = []
    renew = packed_state._PackedCopy.renew

    def counted(self: Any) -> None:
        before = self._contents
        renew(self)
        made.append(int(self._contents is None or self._contents != before))

    monkeypatch.setattr(packed_state._PackedCopy, "renew", counted)
    return made


# What is kept


def test_it_is_packed_once(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    made = packs(monkeypatch)
    first = case.run()
    for _ in range(3):
        np.testing.assert_array_equal(case.run(), first)
    assert made == [0, 0, 0, 0]
    case.weight.set(case.values(), case.place)
    case.run(), case.run()
    assert made == [0, 0, 0, 0, 1, 0]


def test_the_report_of_pieces_names_the_look(host: Case) -> None:
    last = host.exe._runner.executables.last
    assert last is not None
    first, *_ = launch_groups(last)
    assert first.how == "a check whether packed state was written"
    assert "a copy of the result into state" not in str(launch_groups(last))


def test_other_batch_sizes_share_it_and_it_is_freed(case: Case) -> None:
    case.x = np.concatenate([case.x, case.x[:1]])
    case.check(case.weight.numpy().copy())
    (form,) = forms(case.weight)
    used, nbytes = memory.used(case.place), form.nbytes
    del form, case.exe
    gc.collect()
    assert not forms(case.weight)
    assert memory.used(case.place) <= used - nbytes


@pytest.mark.parametrize(("place", "kind"), BOTH)
def test_what_does_not_fit_is_packed_by_the_kernel(place: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if fluid.Place.parse(place) not in devices.places():
        pytest.skip(place)
    monkeypatch.setattr(packed_state, "MAX_PACKED_BYTES", 0)
    case = Case(place, kind)
    for _ in range(3):
        values = case.values()
        case.weight.set(values, case.place)
        case.check(values)
    assert not forms(case.weight)


def test_what_the_program_writes_is_not_kept() -> None:
    program, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(program, startup):
        out = layers.conv2d(layers.data("x", [3, 6, 6]), 8, 3, bias_attr=False)
        loss = layers.mean(layers.square(out))
        fluid.optimizer.SGD(0.1).minimize(loss)
    scope, exe = fluid.Scope(), fluid.Executor("cpu")
    exe.run(startup, scope=scope)
    feed = {"x": np.ones((2, 3, 6, 6), F32)}
    losses = [float(np.asarray(exe.run(program, feed, [loss], scope=scope)[0]).item()) for _ in range(4)]
    assert losses == sorted(losses, reverse=True) and losses[0] > losses[-1]
    held = {scope.find_var(each.name).get_tensor().allocation for each in program.list_vars() if each.persistable}
    assert not [form for form in list(packed_state._copies.values()) if form._source in held]


# Ways to write


def _set_whole(case: Case, values: Values) -> None:
    case.weight.set(values, case.place)


def _set_elsewhere_and_back(case: Case, values: Values) -> None:
    case.weight.set(values, "cpu")
    case.weight.move_to(case.place)


def _through_a_view(case: Case, values: Values) -> None:
    case.weight[...] = values


def _through_a_part(case: Case, values: Values) -> None:
    case.weight[0:2].set(values[0:2])
    case.weight.slice(2, case.dims[0]).set(values[2:])


def _through_a_strided_part(case: Case, values: Values) -> None:
    for i in range(2):
        case.weight[:, i::2] = values[:, i::2]


def _by_element(case: Case, values: Values) -> None:
    for i, value in enumerate(values.reshape(-1)):
        case.weight._set_float_element(i, float(value))


def _assigned(case: Case, values: Values) -> None:
    case.weight.assign(fluid.Tensor().set(values, case.place))


def _anew(case: Case, values: Values) -> None:
    case.weight.resize([values.size])
    case.weight.set(np.zeros(3, F32))
    case.weight.set(values, case.place)


def _shared(case: Case, values: Values) -> None:
    other = fluid.Tensor().set(values * 0, case.place)
    case.weight.share_data_with(other)
    case.check(values * 0)
    other.set(values)


def _shared_by_another(case: Case, values: Values) -> None:
    other = fluid.Tensor().share_data_with(case.weight)
    case.check(case.weight.numpy().copy())
    other.set(values)


def _by_another_name(case: Case, values: Values) -> None:
    other = case.scope.var("other").get_tensor()
    other.share_data_with(case.weight)
    program = fluid.Program()
    with fluid.program_guard(program):
        given = layers.data("given", list(case.dims), append_batch_size=False)
        held = layers.create_parameter(list(case.dims), F32, name="other")
        layers.assign(given, held)
    executor = fluid.Executor(case.place)
    for each in (values * 2, values * 3, values):  # in place from the second run on
        executor.run(program, {"given": each}, [], scope=case.scope)
        if other.allocation is case.weight.allocation:
            case.check(each)
    if other.allocation is not case.weight.allocation:
        case.weight.set(values)


def _by_assign(case: Case, values: Values) -> None:
    write = case.writer(layers.assign)
    for each in (values * 2, values * 3, values):
        write(each)
        case.check(each)


def _by_an_optimizer(case: Case, values: Values) -> None:
    def step(given: Any, held: Any) -> None:
        rate = layers.fill_constant([1], F32, 1.0)
        slots = {"Param": held, "Grad": given, "LearningRate": rate}
        fluid.default_main_program().global_block().append_op("sgd", slots, {"ParamOut": held})

    write = case.writer(step)
    for each in (values * 2, values * 3, values):
        write(case.weight.numpy() - each)
        case.check(case.weight.numpy().copy())


def _interpreted(case: Case, values: Values) -> None:
    program = fluid.Program()
    with fluid.program_guard(program):
        given = layers.data("given", list(case.dims), append_batch_size=False)
        layers.assign(given, layers.create_parameter(list(case.dims), F32, name="w"))
    fluid.Executor(case.place, mode="interpreted").run(program, {"given": values}, [], scope=case.scope)


def _by_another_thread(case: Case, values: Values) -> None:
    def write() -> None:
        case.writer(layers.assign)(values * 2)
        case.weight[...] = values

    thread = threading.Thread(target=write)
    thread.start()
    thread.join()


def _loaded(case: Case, values: Values, path: Path) -> None:
    old = case.weight.numpy().copy()
    case.weight.set(values, case.place)
    with fluid.scope_guard(case.scope):
        fluid.io.save_params(case.exe, str(path), case.main)
        case.weight.set(old, case.place)
        case.check(old)
        fluid.io.load_params(case.exe, str(path), case.main)


def _started_again(case: Case, values: Values) -> None:
    case.exe.run(case.startup, scope=case.scope)
    case.check(case.weight.numpy().copy())
    case.weight.set(values, case.place)


WAYS = [
    _set_whole,
    _set_elsewhere_and_back,
    _through_a_view,
    _through_a_part,
    _through_a_strided_part,
    _by_element,
    _assigned,
    _anew,
    _shared,
    _shared_by_another,
    _by_another_name,
    _by_assign,
    _by_an_optimizer,
    _interpreted,
    _by_another_thread,
    _started_again,
]


@pytest.mark.parametrize("write", WAYS, ids=lambda each: each.__name__.strip("_"))
def test_new_numbers_are_seen(case: Case, write: Callable[[Case, Values], None]) -> None:
    for _ in range(2):
        values = case.values()
        write(case, values)
        np.testing.assert_allclose(case.weight.numpy(), values, rtol=1e-4, atol=1e-5)
        case.check(case.weight.numpy().copy())
        case.check(case.weight.numpy().copy())


def test_loaded_numbers_are_seen(case: Case, tmp_path: Path) -> None:
    values = case.values()
    _loaded(case, values, tmp_path)
    case.check(values)


# Ways that say nothing, on the host


@pytest.fixture
def host() -> Case:
    made = Case("cpu")
    made.run(), made.run()
    assert len(forms(made.weight)) == 1
    return made


def _array(case: Case) -> Any:
    return case.weight.numpy()


def _native(case: Case) -> Any:
    return case.weight.data()


def _of_the_namespace(case: Case) -> Any:
    return case.weight.array()


def _for_writing(case: Case) -> Any:
    return case.weight.mutable_data("cpu")


def _of_a_part(case: Case) -> Any:
    return case.weight[0:8].numpy()[:]


def _uncopied(case: Case) -> Any:
    return case.weight.__array__(copy=False)


@pytest.mark.parametrize(
    "get", [_array, _native, _of_the_namespace, _for_writing, _of_a_part, _uncopied], ids=lambda g: g.__name__
)
def test_what_is_written_through_an_array_is_seen(host: Case, get: Callable[[Case], Any]) -> None:
    for _ in range(2):
        values = host.values()
        get(host)[...] = values  # which nobody has any more when it runs
        host.check(values)
    array = get(host)
    for _ in range(3):
        values = host.values()
        array[...] = values
        host.check(values)
        host.check(values)
    values = host.values()
    part = array[1:, :2]
    del array
    gc.collect()
    part[...] = values[1:, :2]
    wanted = host.weight.__array__().copy()
    host.check(wanted)
    part[...] = 0
    del part
    host.check(np.concatenate([wanted[:1], np.concatenate([wanted[1:, :2] * 0, wanted[1:, 2:]], 1)]))


def test_what_another_library_writes_is_seen(host: Case) -> None:
    array = np.zeros(host.dims, F32)
    host.weight.share_data_with(fluid.from_dlpack(array))
    exported = np.from_dlpack(host.weight)
    for each in (array, exported):
        if each.flags.writeable:
            each[...] = host.values()
        host.check(np.array(host.weight))
        host.check(np.array(host.weight))


def test_it_is_kept_again_once_an_array_is_gone(host: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    made = packs(monkeypatch)
    array = host.weight.numpy()
    host.run(), host.run()
    del array
    host.run(), host.run(), host.run()
    assert made == [1, 1, 1, 0, 0]
    np.asarray(host.weight), np.array(host.weight), float(np.sum(host.weight))
    host.run()
    assert made[-1] == 0


def test_who_writes_by_address_says_so(host: Case) -> None:
    values = host.values()
    ctypes.memmove(host.weight.address(), values.ctypes.data, values.nbytes)
    host.weight.wrote()
    host.check(values)


@pytest.mark.parametrize("place", PLACES)
def test_what_a_host_function_writes_within_a_run_is_seen(place: str) -> None:
    if fluid.Place.parse(place) not in devices.places():
        pytest.skip(place)
    held: dict[str, Any] = {}

    def write() -> None:
        if held:
            held["tensor"][...] = held["values"]

    case = Case(place, before=write)
    case.run(), case.run()
    held["tensor"] = case.weight
    for _ in range(3):
        held["values"] = case.values()
        found = case.run()
        held.pop("values"), (tensor := held.pop("tensor"))
        case.check(tensor.numpy().copy())
        np.testing.assert_allclose(found, case.run(), rtol=1e-5, atol=1e-5)
        held["tensor"] = tensor


# What a kernel declares


def product(prepare: Callable[[Call, Context], Any], inner: int = 3) -> Any:
    """A product with a parameter, behind another operator on the cpu, by a kernel that goes before all others."""
    made = Kernel("matmul", ("cpu",), prepare, "packs", origin="packs.py:7")
    kernels.add_library(library := Library("packs", places=("cpu",), rank=1000))
    kernels.add(made)
    try:
        program, startup, scope = fluid.Program(), fluid.Program(), fluid.Scope()
        with fluid.program_guard(program, startup):
            x = layers.tanh(layers.data("x", [inner]))
            out = layers.matmul(x, layers.create_parameter([inner, 2], F32))
        exe = fluid.Executor("cpu")
        exe.run(startup, scope=scope)
        return exe.run(program, {"x": np.ones((4, inner), F32)}, [out], scope=scope)[0]
    finally:
        kernels.remove(made)
        kernels.remove_library(library)


def full(*unused: Any) -> None:
    raise RuntimeError("the board is full")


def writes(context: Context, io: IO) -> None:
    io.array("Out")[...] = 1


@pytest.mark.parametrize(
    ("prepared", "message"),
    [
        (Prepared(writes, packed={"Y": 3}), "wants Y packed as 3; expected (0 bytes or more, function, key)"),  # type: ignore[dict-item]
        (Prepared(writes, packed={"Y": (-1, full, 1)}), "wants Y packed as (-1, "),
        (Prepared(writes, packed={"Y": (1, None, 1)}), "wants Y packed as (1, None, 1); expected"),  # type: ignore[dict-item]
        (Prepared(writes, packed={"W": (1, full, 1)}), "wants 'W' packed; expected an input of one tensor: X, Y"),
        (Prepared(writes, packed={"Out": (1, full, 1)}), "wants 'Out' packed; expected an input of one tensor: X, Y"),
        (Prepared(writes, packed={"Y": (8, full, 1)}), "failed on cpu:0: RuntimeError: the board is full"),
        (Prepared(writes, bind=full), "failed on cpu:0: RuntimeError: the board is full"),
        (Prepared(writes, record=full), "failed on cpu:0: RuntimeError: the board is full"),
    ],
)
def test_what_a_kernel_declares_wrongly_is_told_with_its_operator(prepared: Prepared, message: str) -> None:
    with pytest.raises(DeviceError) as error:
        product(lambda call, context: prepared)
    assert message in str(error.value)
    assert str(error.value).startswith("operator matmul (test_packed_state.py")
    assert "In the kernel for 'matmul' at packs.py:7 (library 'packs')" in str(error.value)


def test_a_form_of_no_bytes_is_none() -> None:
    def run(context: Context, io: IO) -> None:
        assert io.packed("Y") is None
        io.array("Out")[...] = 0

    prepared = Prepared(run, packed={"Y": (0, full, "empty")})
    assert product(lambda call, context: prepared, inner=0).tolist() == [[0, 0]] * 4


def test_a_script_declares_one(monkeypatch: pytest.MonkeyPatch) -> None:
    from fluidlite.plugin import register_kernel

    packed: list[int] = []

    def pack(context: Context, source: Span, target: Span) -> None:
        packed.append(1)
        context.copy_within(target, source)

    @register_kernel("elementwise_mul", "cpu", library="packs")
    def scaled(call: Call, context: Context) -> Prepared:
        nbytes = call.spec("Y").nbytes

        def run(context: Context, io: IO) -> None:
            found = io.packed("Y")
            y = io.array("Y")
            if found is not None:
                y = np.frombuffer(context.raw.view(found) if hasattr(context.raw, "view") else found.handle, np.uint8)
                y = y[found.offset : found.offset + nbytes].view(F32).reshape(call.dims("Y"))
            io.array("Out")[...] = io.array("X") * y

        return Prepared(run, packed={"Y": (nbytes, pack, "copy")})

    try:
        program, startup = fluid.Program(), fluid.Program()
        with fluid.program_guard(program, startup):
            x = layers.data("x", [3])
            y = layers.create_parameter([3], F32, name="y")
            out = layers.elementwise_mul(x, y)
        scope, exe = fluid.Scope(), fluid.Executor("cpu", libraries={"cpu": ["packs"]}, passes=())
        exe.run(startup, scope=scope)
        for value in (2.0, 3.0):
            scope.find_var("y").get_tensor().set(np.full(3, value, F32), "cpu")
            for _ in range(3):
                (found,) = exe.run(program, {"x": np.ones((2, 3), F32)}, [out], scope=scope)
                np.testing.assert_array_equal(found, np.full((2, 3), value, F32))
        assert len(packed) == 2
    finally:
        kernels.remove(scaled)
