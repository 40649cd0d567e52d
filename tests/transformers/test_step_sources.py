"""``sources()`` has the texts of what runs step by step: kernels of steps, and a program that runs by itself."""

from __future__ import annotations

import importlib.util
import inspect
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite import layers
from fluidlite.platform.context_pool import get_context
from fluidlite.platform.place import Place
from fluidlite.transformers import codegen_choices, make_transformer

PLACES = [str(place) for place in fluid.places()]
RNG = np.random.default_rng(5)


def module_of(folder: Path) -> Any:
    """A written program, loaded as a module of its own."""
    spec = importlib.util.spec_from_file_location("written_steps", folder / "program.py")
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def lstm(lengths: list[int]) -> tuple[Any, list[Any], Any]:
    """An executor's feed, what to fetch (a loss, gradients, hidden states), and the state."""
    x = layers.data("x", [12], lod_level=1)
    x.stop_gradient = False
    weight, bias = fluid.ParamAttr(name="w"), fluid.ParamAttr(name="b")
    hidden, _ = layers.dynamic_lstm(x, 12, use_peepholes=True, param_attr=weight, bias_attr=bias)
    loss = layers.mean(hidden * hidden)
    parameters = [fluid.default_main_program().global_block().var(name) for name in ("w", "b")]
    gradients = fluid.gradients([loss], [x, *parameters])
    rows = RNG.normal(size=(sum(lengths), 12)).astype("float32")
    return fluid.create_lod_tensor(rows, [lengths], fluid.CPUPlace()), [loss, *gradients, hidden], rows


@pytest.mark.parametrize("lengths", [[3, 0, 5, 1], [2, 2]], ids=["ragged", "even"])
def test_a_written_program_runs_by_itself(lengths: list[int], tmp_path: Path) -> None:
    feed, fetch, rows = lstm(lengths)
    exe = fluid.Executor("cpu")
    exe.run(fluid.default_startup_program())
    found = [np.asarray(each) for each in exe.run(feed={"x": feed}, fetch_list=fetch, return_numpy=False)]
    exe.write_sources(tmp_path)
    text = (tmp_path / "program.py").read_text()
    assert "steps({" in text and "NotImplementedError" not in text
    state = {name: np.asarray(fluid.global_scope().find_var(name).get_tensor()) for name in ("w", "b")}
    run = module_of(tmp_path).run
    names = set(inspect.signature(run).parameters)
    written = run(rows, **{name: value for name, value in state.items() if name in names})
    for made, expected in zip(written, found, strict=True):
        np.testing.assert_allclose(made, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("place", PLACES)
def test_kernels_of_steps_are_among_the_sources(place: str) -> None:
    """Each step that runs another one names the texts of its kernels, which are there, as other kernels' are."""
    feed, fetch, _ = lstm([3, 0, 5, 1])
    compiled = place.startswith("cpu") and "llvm" in codegen_choices()
    exe = fluid.Executor(place, fallback="allow", **({"codegen": "llvm"} if compiled else {}))
    exe.run(fluid.default_startup_program())
    exe.run(feed={"x": feed}, fetch_list=fetch, return_numpy=False)
    texts = exe.sources()
    blocks = re.split(r"\n(?=\d+: )", texts["steps.txt"])
    stepping = [block for block in blocks if re.match(r"\d+: steps\b", block)]
    assert len(stepping) == 2  # forward and backward
    for block in stepping:
        named = re.findall(r"text (\S+)", block)
        assert len(set(named)) == len(named)
        if compiled or (not place.startswith("cpu") and get_context(Place.parse(place)).language is not None):
            assert any(re.match(r"kernels/\d+_(loops_step|step_part)", name) for name in named), block
        for name in named:
            entry = re.fullmatch(r"kernels/\d+_(\w+)\.\w+", name)
            assert entry is not None and f"{entry[1]}(" in texts[name]
            listings = [each for each in texts if each.startswith(name.rsplit(".", 1)[0])]
            assert not compiled or f"{name.rsplit('.', 1)[0]}.ll" in listings


@pytest.mark.parametrize("codegen", codegen_choices("cpu"))
def test_steps_of_a_computation(codegen: str, tmp_path: Path) -> None:
    """A padded lstm, by each code generator of the host: its program is written and runs."""
    with make_transformer("cpu", codegen=codegen) as transformer:
        x = layers.data("x", [4, 2, 3], append_batch_size=False)
        w = layers.data("w", [3 * 12 + 3 * 12 + 24], append_batch_size=False)
        h, c = (layers.data(name, [1, 2, 3], append_batch_size=False) for name in "hc")
        block = fluid.default_main_program().global_block()
        outs = {slot: block.create_var(slot) for slot in ("Out", "last_h", "last_c")}
        outs["Reserve"] = [block.create_var(f"kept{k}") for k in range(3)]
        block.append_op("cudnn_lstm", {"Input": x, "InitH": h, "InitC": c, "W": w}, outs, {"hidden_size": 3})
        computation = transformer.computation(outs["Out"], x, h, c, w)
        given = [RNG.normal(size=each.shape).astype("float32") for each in (x, h, c, w)]
        found = np.asarray(computation(*given))
        text = computation.sources()["program.py"]
        assert "steps({4" not in text and "steps({2: " in text
        computation.write_sources(tmp_path)
        np.testing.assert_allclose(module_of(tmp_path).run(*given), found, rtol=1e-5, atol=1e-6)
