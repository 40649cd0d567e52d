"""``codegen=`` chooses whose kernels run; ``sources()`` gives texts that are what runs."""

from __future__ import annotations

import importlib.util
import inspect
import json
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from networks import Net, lenet, network, random_program

import fluidlite as fluid
from fluidlite import layers
from fluidlite.cli.main import main
from fluidlite.compiler.planning.plan import Launch
from fluidlite.platform.context_pool import get_context
from fluidlite.platform.device_registry import devices
from fluidlite.program.codegen_registry import generator_capability
from fluidlite.transformers import (
    Computation,
    Transformer,
    codegen_choices,
    make_transformer,
    make_transformer_factory,
    set_transformer_factory,
)

llvm = pytest.mark.skipif("llvm" not in codegen_choices(), reason="llvmlite and pycparser are not installed")
HEAD = re.compile(r"// kernel (\w+)\((.*)\)")


def gelu(transformer: Transformer) -> Computation:
    x = layers.data("x", [64])
    w, b = (layers.data(name, [64], append_batch_size=False) for name in ("w", "b"))
    return transformer.computation(layers.gelu(x * w + b), x, w, b)


def given(rows: int) -> list[Any]:
    rng = np.random.default_rng(rows)
    return [rng.normal(size=dims).astype("float32") for dims in ((rows, 64), (64,), (64,))]


def launches(last: Any) -> list[Launch]:
    return [step for step in last.plan.steps if isinstance(step, Launch) and not step.skip]


def capabilities(computation: Computation) -> list[str]:
    return [step.choice.capability for step in launches(computation.executor.executables.last)]  # type: ignore[union-attr]


def module_of(folder: Path) -> Any:
    """A written program, loaded as a module of its own."""
    spec = importlib.util.spec_from_file_location("written", folder / "program.py")
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


# The choice


def test_the_choices_of_each_place() -> None:
    assert codegen_choices()[-1] == "numpy"
    assert codegen_choices("cpu") == codegen_choices()


@pytest.mark.opencl
def test_the_choices_of_opencl(require: Callable[..., None]) -> None:
    require("opencl")
    assert codegen_choices("opencl") == ["opencl"]
    with make_transformer("opencl", codegen="opencl") as transformer:
        gelu(transformer)(*given(5))


def test_a_memory_only_place_has_none(require: Callable[..., None]) -> None:
    require("fpga")
    assert codegen_choices("fpga") == []
    with pytest.raises(ValueError, match="codegen is 'numpy'; fpga:0 has no code generator"):
        make_transformer("fpga", codegen="numpy")


@pytest.mark.parametrize("rows", [2, 600])
def test_numpy_takes_no_compiled_kernel(rows: int) -> None:
    with make_transformer(codegen="numpy") as transformer:
        computation = gelu(transformer)
        computation(*given(rows))
        assert capabilities(computation) == ["array"]
        assert "kernels" not in "".join(computation.sources())


@llvm
@pytest.mark.parametrize("rows", [2, 600])
def test_llvm_compiles_whatever_the_size(rows: int) -> None:
    with make_transformer(codegen="llvm") as transformer:
        computation = gelu(transformer)
        computation(*given(rows))
        assert capabilities(computation) == ["language"]


@llvm
def test_the_default_is_the_best_of_each() -> None:
    with make_transformer() as transformer:
        computation = gelu(transformer)
        computation(*given(600))
        assert capabilities(computation) == ["language"]


def test_generators_agree() -> None:
    found = []
    for name in codegen_choices():
        with make_transformer("cpu", codegen=name) as transformer:
            found.append(gelu(transformer)(*given(600)))
    for each in found[1:]:
        np.testing.assert_allclose(each, found[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["numpy", "llvm"])
def test_an_executor_chooses_too(name: str) -> None:
    if name not in codegen_choices():
        pytest.skip("llvmlite is not installed")
    main, startup, feed, wanted = network(depth=2, width=64, batch=64)
    results = []
    for codegen in (name, None):
        exe, scope = fluid.Executor("cpu", codegen=codegen, mode="compiled"), fluid.Scope()
        exe.run(startup, scope=scope)
        results.append([exe.run(main, feed, wanted, scope=scope) for _ in range(3)])
        if codegen is not None:
            other = {"numpy": "language", "llvm": "array"}[name]
            made = [step for step in launches(exe._executables.last) if step.choice.kernel is None]  # type: ignore[union-attr]
            assert made and all(step.choice.capability != other for step in made)
    np.testing.assert_allclose(results[0], results[1], rtol=1e-4)


def test_an_interpreter_chooses_too() -> None:
    x = layers.data("x", [600])
    y = layers.tanh(x)
    exe = fluid.Executor("cpu", codegen="numpy", mode="interpreted")
    exe.run(feed={"x": np.ones((600, 600), "float32")}, fetch_list=[y])
    assert [row["kernel"] for row in exe.explain_last().data()] == ["expression (array)"]


@pytest.mark.parametrize("mode", ["interpreted", "compiled"])
def test_members_of_a_data_parallel_program_choose_as_their_executor_does(mode: str) -> None:
    y = layers.reduce_sum(layers.tanh(layers.data("x", [600])))
    exe = fluid.Executor("cpu", codegen="numpy", mode=mode)
    program = fluid.CompiledProgram(fluid.default_main_program()).with_data_parallel(places=["cpu", "cpu"])
    exe.run(program, feed={"x": np.ones((600, 600), "float32")}, fetch_list=[y])
    assert program._replicas is not None
    for member in program._replicas._executors:
        assert "language" not in member.explain_last().summary["libraries"]
    assert exe.sibling("null").codegen is None  # of another kind, which has generators of its own


def test_ways_to_make_one() -> None:
    assert make_transformer_factory("cpu", codegen="numpy")().codegen == "numpy"
    assert make_transformer("cpu", seed=3).seed == 3
    set_transformer_factory(make_transformer_factory("cpu", seed=7))
    try:
        made = make_transformer(codegen="numpy")
        assert (made.seed, made.codegen) == (7, "numpy")
    finally:
        set_transformer_factory(None)


@pytest.mark.parametrize("name", ["llvmm", "cuda", "", 3, None])
def test_unknown_names(name: Any) -> None:
    if name is None:
        assert make_transformer(codegen=None).codegen is None
        return
    listed = ", ".join(codegen_choices())
    for make in (lambda: make_transformer(codegen=name), lambda: fluid.Executor("cpu", codegen=name)):
        with pytest.raises(ValueError, match=re.escape(f"codegen is {name!r}; cpu:0 has {listed}")):
            make()


def test_one_that_is_not_installed_names_the_extra() -> None:
    unit = devices.unit("cpu")
    without: Any = SimpleNamespace(place=unit.place, device=unit.device, array=unit.array, language=None)
    with pytest.raises(ValueError, match=r"codegen is 'llvm'; cpu:0 has numpy\n  Do: pip install llvmlite pycparser"):
        generator_capability(without, "llvm")


# NumPy's generator


def test_numpy_fuses() -> None:
    counts = []
    for phase in ("fuse", ""):
        with make_transformer(codegen="numpy") as transformer:
            transformer.graph_passes = [p for p in transformer.graph_passes if p.phase != phase]  # type: ignore[assignment]
            computation = gelu(transformer)
            computation(*given(600))
            counts.append(len(capabilities(computation)))
    assert counts == [3, 1]


# Sources


def nets(name: str) -> Net:
    if name == "network":
        return network(depth=2, width=64, batch=64)
    return lenet() if name == "lenet" else random_program(int(name))


@pytest.mark.parametrize("codegen", [None, *codegen_choices()])
@pytest.mark.parametrize("name", ["network", "lenet", *map(str, range(12))])
def test_a_written_program_gives_the_same_bits(name: str, codegen: str | None, tmp_path: Path) -> None:
    main, startup, feed, wanted = nets(name)
    exe, scope = fluid.Executor("cpu", codegen=codegen, mode="compiled"), fluid.Scope()
    exe.run(startup, scope=scope)
    state = {v.name: np.array(scope.find_var(v.name).tensor.numpy()) for v in main.list_vars()  # type: ignore[union-attr]
             if v.persistable and scope.find_var(v.name) is not None}  # fmt: skip
    found = [exe.run(main, feed, wanted, scope=scope) for _ in range(3)]
    exe.write_sources(tmp_path)
    written = module_of(tmp_path)
    named = {re.sub(r"\W+", "_", key): array for key, array in state.items()}
    asked = inspect.signature(written.run).parameters
    options = {key: named[key] for key in asked if key in named}
    arguments = [feed[key] for key in exe._executables.last.plan.feeds]  # type: ignore[union-attr]
    for turn in range(3):
        drawn = {"draw": turn} if "draw" in asked else {}
        made = written.run(*arguments, **options, **drawn)
        for mine, theirs in zip(made if isinstance(made, tuple) else (made,), found[turn], strict=True):
            np.testing.assert_array_equal(mine, theirs)
    for key, array in named.items():
        if key in options:
            kept = {re.sub(r"\W+", "_", v.name): v.name for v in main.list_vars()}[key]
            np.testing.assert_array_equal(array, scope.find_var(kept).tensor.numpy())  # type: ignore[union-attr]


def test_a_written_program_runs_in_a_process_of_its_own(tmp_path: Path) -> None:
    with make_transformer(codegen="numpy") as transformer:
        computation = gelu(transformer)
        arrays = given(5000)
        expected = computation(*arrays)
        paths = computation.write_sources(tmp_path / "new" / "folder")
        assert paths[-1] == tmp_path / "new" / "folder" / "program.py"
    np.savez(tmp_path / "given.npz", *arrays)
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import numpy as np, program\n"
        "given = np.load(sys.argv[2]); np.save(sys.argv[3], program.run(*(given[k] for k in given.files)))"
    )
    files = [str(paths[-1].parent), str(tmp_path / "given.npz"), str(tmp_path / "found.npy")]
    subprocess.run([sys.executable, "-c", code, *files], check=True, timeout=280)
    np.testing.assert_array_equal(np.load(tmp_path / "found.npy"), expected)


def test_numpy_text_is_blocks_of_positional_calls() -> None:
    with make_transformer(codegen="numpy") as transformer:
        computation = gelu(transformer)
        computation(*given(60000))
        text = computation.sources()["program.py"]
    assert re.search(r"for b in range\(0, 60000, \d+\):", text)
    assert re.search(r"np\.multiply\(x0, in1|np\.multiply\(x0, a1, s0\)", text)
    assert "env" not in text and "io." not in text
    for part in ("elementwise_mul (test_codegen.py:", "elementwise_add (test_codegen.py:", "gelu (test_codegen.py:"):
        assert part in text


@pytest.mark.parametrize("place", ["cpu", pytest.param("opencl", marks=pytest.mark.opencl)])
def test_written_kernels_compile_the_same_way(place: str, require: Callable[..., None], tmp_path: Path) -> None:
    require(place)
    main, startup, feed, wanted = lenet()
    exe, scope = fluid.Executor(place, fallback="allow", mode="compiled"), fluid.Scope()
    exe.run(startup, scope=scope)
    exe.run(main, feed, wanted, scope=scope)
    paths = exe.write_sources(tmp_path)
    context = get_context(place)
    if context.language is None:
        pytest.skip("the place has no kernel language")
    kernels = [path for path in paths if path.suffix == context.language.suffix]
    assert kernels
    for path in kernels:
        text = path.read_text()
        head = HEAD.match(text)
        assert head is not None
        assert "test_codegen.py" in text or "networks.py" in text
        context.compile(text, head[1], tuple(head[2].split(", ")))


@llvm
def test_llvm_text_goes_with_each_kernel() -> None:
    with make_transformer(codegen="llvm") as transformer:
        computation = gelu(transformer)
        computation(*given(600))
        texts = computation.sources()
    names = [Path(name) for name in texts if name.startswith("kernels/")]
    assert {name.suffix for name in names} == {".c", ".ll"}
    for name in names:
        assert (name.with_suffix(".ll" if name.suffix == ".c" else ".c")).as_posix() in texts
    (listing,) = (text for name, text in texts.items() if name.endswith(".ll"))
    assert "define void @fl_fused_mul_add_gelu(" in listing


def test_a_call_on_the_fast_path_shows_how() -> None:
    with make_transformer(codegen="numpy") as transformer:
        computation = gelu(transformer)
        for _ in range(3):
            computation(*given(600))
        assert computation.sources()["call.py"].startswith("def call(args):")


def test_other_places_list_their_steps(transformer: Transformer) -> None:
    computation = gelu(transformer)
    computation(*given(600))
    texts = computation.sources()
    steps = texts["steps.txt"]
    assert "gelu (test_codegen.py:" in steps and "planned" in steps
    assert ("program.py" in texts) == (transformer.place == devices.host())


@pytest.mark.parametrize("place", ["cpu", pytest.param("opencl", marks=pytest.mark.opencl), "fpga"])
def test_stages_have_folders(place: str, require: Callable[..., None]) -> None:
    require(place)
    x = layers.data("x", [4])
    rows = layers.cast(layers.reduce_sum(layers.cast(layers.where(x > 0.0), "int64"), dim=1), "int64")
    out = layers.softmax(layers.gather(layers.reshape(x, [-1]), rows))
    exe = fluid.Executor(place, fallback="allow", mode="compiled")
    for _ in range(3):
        exe.run(feed={"x": np.ones((3, 4), "float32")}, fetch_list=[out])
    texts = exe.sources()
    assert "layers.where" in texts["stage0/steps.txt"]
    assert "softmax (test_codegen.py:" in texts["stage1/steps.txt"]


def test_there_are_none_before_a_call(cpu: Transformer) -> None:
    computation = gelu(cpu)
    with pytest.raises(ValueError, match=r"there are no sources: .*\n  Do: call it once"):
        computation.sources()
    exe = fluid.Executor("cpu", mode="interpreted")
    with pytest.raises(ValueError, match="there are no sources"):
        exe.sources()


# The command


def command(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    assert main(arguments) == code
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    return out if code == 0 else err


@pytest.fixture
def model(tmp_path: Path) -> str:
    program = fluid.Program()
    with fluid.program_guard(program, fluid.Program()), fluid.unique_name.guard():
        layers.softmax(layers.fc(layers.data("x", [8]), 4, act="tanh"))
    path = tmp_path / "program.json"
    path.write_text(program.to_json())
    return str(path)


def test_the_command_writes_files(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "to"
    said = command(capsys, "sources", model, "--codegen", "numpy", "--feed", "x=3x8", "--to", str(folder))
    written = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.*"))
    assert written == ["call.py", "program.py", "steps.txt"]
    assert all(name in said for name in written)
    run = module_of(folder).run
    zeros = {name: np.zeros(dims, "float32") for name, dims in (("fc_0_w_0", (8, 4)), ("fc_0_b_0", (4,)))}
    np.testing.assert_array_equal(run(np.zeros((3, 8), "float32"), **zeros), np.full((3, 4), 0.25, "float32"))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "the dims of 'x' are [-1, 8]"),
        (("--feed", "y=3"), "the program is not fed 'y'; it takes x"),
        (("--feed", "x=3x8", "--codegen", "abacus"), "codegen is 'abacus'; cpu:0 has"),
        (("--feed", "x=3x8", "--fetch", "nothing"), "the program has no variable 'nothing' to fetch"),
        (("--feed", "x=3x8", "--place", "nowhere"), "no device serves place 'nowhere:0'"),
    ],
)
def test_bad_options(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: Sequence[str], said: str
) -> None:
    assert said in command(capsys, "sources", model, "--to", str(tmp_path / "to"), *options, code=2)
    assert not (tmp_path / "to").exists()


@pytest.mark.parametrize("size", [32, 64])
def test_what_lies_outside_of_the_arena_is_read_and_written_in_layouts(tmp_path: Path, size: int) -> None:
    """Feeds, weights and results are taken to the layout of convolutions, and from it, where they lie themselves."""
    main_, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main_, startup), fluid.unique_name.guard():
        x = layers.data("x", [2, 3, size, size], append_batch_size=False)
        first = layers.relu(layers.conv2d(x, 16, 7, 2, 3, bias_attr=False))
        second = layers.conv2d(first, 16, 3, 1, 1, bias_attr=False)
        mean = layers.pool2d(second, pool_type="avg", global_pooling=True)
    exe, scope = fluid.Executor("cpu"), fluid.Scope()
    exe.run(startup, scope=scope)
    given = np.random.default_rng(0).standard_normal((2, 3, size, size)).astype("float32")
    expected = exe.run(main_, {"x": given}, [mean, second], scope=scope)
    texts = exe.sources()
    assert "NHWC" in texts["steps.txt"]
    exe.write_sources(tmp_path)
    weights = {name.replace(".", "_"): scope.find_var(name).get_tensor().numpy()
               for name in ("conv2d_0.w_0", "conv2d_1.w_0")}  # fmt: skip
    for found, wanted in zip(module_of(tmp_path).run(given, **weights), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)


# What a program that was loaded may be called


def test_names_stay_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    evil = 'o"""\nimport fluidlite; fluidlite.ran = True\n"""'
    written = fluid.Program()
    block = written.global_block()
    x, y = block.create_var("lambda", [2, 3], "float32", is_data=True), block.create_var(evil)
    block.append_op("relu", {"X": x}, {"Out": y})
    data = json.loads(written.to_json())
    for op in data["blocks"][0]["ops"]:
        op["line"] = ["a.py\nimport fluidlite; fluidlite.ran = True\n#", 1, "\nfluidlite.ran = True"]
    exe, given = fluid.Executor("cpu"), np.float32([[-1, 0, 1], [2, -2, 3]])
    (found,) = exe.run(fluid.Program.from_json(json.dumps(data)), {"lambda": given}, [evil])
    exe.write_sources(tmp_path)
    monkeypatch.setattr(fluid, "ran", False, raising=False)
    np.testing.assert_array_equal(module_of(tmp_path).run(given), found)
    assert not fluid.ran  # type: ignore[attr-defined]
    assert not re.search(r"^\s*(import fluidlite|fluidlite\.ran)", (tmp_path / "steps.txt").read_text(), re.M)


def test_attributes_that_are_not_finite(tmp_path: Path) -> None:
    program = fluid.Program()
    with fluid.program_guard(program, fluid.Program()), fluid.unique_name.guard():
        x = layers.data("x", [4])
        padded = layers.pad(layers.relu(x), [0, 0, 1, 1], pad_value=float("-inf"))
        y = layers.concat([padded, layers.fill_constant([1, 6], "float32", float("inf"))])
    exe, given = fluid.Executor("cpu"), np.ones((2, 4), "float32")
    (found,) = exe.run(program, {"x": given}, [y])
    exe.write_sources(tmp_path)
    np.testing.assert_array_equal(module_of(tmp_path).run(given), found)
