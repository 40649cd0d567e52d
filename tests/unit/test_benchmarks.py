"""Every operator is measured, and what is measured is right: the cases of benchmarks/operators at the small size."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from grouped import grouped

from fluidlite.conformance.samples import reference_of, samples_of
from fluidlite.program.registry import ops
from fluidlite.program.rules import GradRule

ROOT = str(Path(__file__).parents[2])
FOLDER = Path(ROOT, "benchmarks")
if ROOT not in sys.path:
    sys.path.append(ROOT)

from benchmarks.common import show  # noqa: E402
from benchmarks.operators.case import Case, arrays  # noqa: E402
from benchmarks.operators.checking import by_reference, compare  # noqa: E402
from benchmarks.operators.families import cases  # noqa: E402
from benchmarks.operators.on_place import OnPlace  # noqa: E402
from benchmarks.operators.tables import BEGIN, END, NOTHING, beyond, ratio, tables, write  # noqa: E402

NOT_MEASURED = {
    "linear_chain_crf": "runs on the host alone, sequence by sequence",
    "linear_chain_crf_grad": "runs on the host alone, sequence by sequence",
    "crf_decoding": "runs on the host alone, sequence by sequence",
}
NOT_MEASURED |= dict.fromkeys(
    [f"{type}{grad}" for type in ("lstm", "lstmp", "gru", "cudnn_lstm") for grad in ("", "_grad")],
    "measured over all steps: benchmarks/lstm.py",
)
NOT_MEASURED |= dict.fromkeys(
    ["chunk_eval", "ctc_align", "edit_distance", "sample_classes", "warpctc", "warpctc_grad"], "runs on the host alone"
)
NOT_MEASURED |= {
    "beam_search": "runs on the host alone: benchmarks/decoding.py",
    "sample_negatives": "runs on the host alone, till there are enough different classes",
    "sequence_topk_avg_pooling": "runs on the host alone, matrix by matrix",
    "sequence_topk_avg_pooling_grad": "its operator runs on the host alone, matrix by matrix",
    "rnn_memory_helper": "Out = X: what assign is",
}
NOT_MEASURED |= {
    op.type: "what it costs depends on the other members: benchmarks/data_parallel.py" for op in ops if op.effect
}
NO_DERIVATIVES = {"cvm": "Fluid defines the gradient of its first two features as the other input"}
CASES = cases()
GRADED = [case for case in CASES if case.grads]
STEP = 1e-5


def own(type: str) -> bool:
    """Whether fluidlite defines it: tests register more."""
    return "/fluidlite/operators/" in Path(ops.get(type).origin).as_posix()


def gradient_types() -> set[str]:
    return {op.grad.type for op in ops if isinstance(op.grad, GradRule)}


def test_labels_are_unique() -> None:
    labels = [case.label for case in CASES]
    assert len(labels) == len(set(labels))


def test_every_operator_has_a_case() -> None:
    measured = {case.type for case in CASES}
    expected = {op.type for op in ops if samples_of(op.type) and own(op.type)} - gradient_types()
    assert expected - measured - NOT_MEASURED.keys() == set()


def test_every_gradient_operator_has_a_case() -> None:
    measured = {type for case in GRADED for type in OnPlace(case, "small", "cpu", gradient=True).types}
    expected = {type for type in gradient_types() if type in {op.type for op in ops} and own(type)}
    assert expected - measured - NOT_MEASURED.keys() == set()


def test_no_reason_is_given_for_what_is_measured() -> None:
    assert not NOT_MEASURED.keys() & {case.type for case in CASES}


@grouped(("case",), [pytest.param(case, id=case.label) for case in CASES], by=lambda case: case.type)
def test_values(case: Case) -> None:
    one = OnPlace(case, "small", "cpu")
    one.run()
    if case.numpy is not None:
        found = case.numpy(*arrays(case.inputs("small")))
        compare("cpu against NumPy", one.read(), list(found) if isinstance(found, (tuple, list)) else [found], case)
    if reference_of(case.type) is not None and case.check == "values":
        compare("cpu against the reference", one.read(), by_reference(ops.get(case.type), case, "small"), case)


@grouped(("case",), [pytest.param(case, id=case.label) for case in GRADED], by=lambda case: case.type)
def test_gradients(case: Case) -> None:
    """Along a random direction, the gradient is the difference of the reference."""
    one = OnPlace(case, "small", "cpu", gradient=True)
    one.run()
    results = one.read()
    assert all(np.isfinite(result).all() for result in results)
    definition = ops.get(case.type)
    if reference_of(definition.type) is None or case.check != "values" or case.type in NO_DERIVATIVES:
        return
    random = np.random.default_rng(1)
    given = case.inputs("small")
    forward = OnPlace(case, "small", "cpu")
    forward.run()
    flow = case.flow("small", forward.read())
    directions: dict[str, Any] = {
        slot: [random.choice([-1.0, 1.0], array.shape) for array in _items(given[slot])] for slot in case.grads
    }

    def loss(step: float) -> float:
        moved = dict(given)
        for slot, parts in directions.items():
            pairs = zip(_items(given[slot]), parts, strict=True)
            new = [array.astype(np.float64) + step * part for array, part in pairs]
            moved[slot] = new if isinstance(given[slot], list) else new[0]
        outputs = by_reference(definition, case, "small", moved)
        return sum(float((start * out.reshape(start.shape)).sum()) for start, out in zip(flow, outputs, strict=False))

    flat = [part for parts in directions.values() for part in parts]
    expected = (loss(STEP) - loss(-STEP)) / (2 * STEP)
    found = sum(float((grad.astype(np.float64) * part).sum()) for grad, part in zip(results, flat, strict=True))
    size = sum(float(np.sqrt((grad.astype(np.float64) ** 2).sum())) for grad in results)
    assert abs(found - expected) <= 2e-3 * (abs(expected) + size) + 1e-4


def _items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def test_what_a_run_allocates() -> None:
    case = next(case for case in CASES if case.type == "relu")
    peak, results = OnPlace(case, "middle", "cpu").allocates()
    assert results == 4 * 65_536
    assert results <= peak < 2 * results + NOTHING


def test_limits(tmp_path: Path) -> None:
    figure = {
        "operator": "relu", "types": ["relu"], "size": "large", "dims": [2, 3], "notes": "",
        "us": {"cpu": [9.0, 8.0], "torch": [4.0, 2.0], "opencl": [41.0, 40.0]},
        "memory": {"cpu": [30 << 20, 10 << 20]},
    }  # fmt: skip
    assert ratio(figure, "cpu", "torch") == 4
    assert len(beyond(figure)) == 3
    assert beyond({**figure, "size": "small"}) == []
    titles = [title for title, _, _ in tables({"a": figure})]
    assert titles == ["At large size", "Beyond the limits"]
    path = tmp_path / "page.md"
    path.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n", encoding="utf-8")
    write(path, {"a": figure}, {"cores": 2})
    text = path.read_text(encoding="utf-8")
    assert text.startswith("before\n") and text.endswith("after\n")
    assert "old" not in text and "| relu | 2x3 |  | 8.0 | 2.0 | 4.00 | 40.0 | 5.00 | 3.00 |" in text


def test_tables_without_rows_are_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    show("of nothing", ["name", "ms"], [])
    show("of one", ["name", "ms"], [["a", 1.5]])
    shown = capsys.readouterr().out
    assert "of nothing" not in shown
    assert "| a    | 1.5 |" in shown


def scripts() -> list[str]:
    """Names of what is run from a command line; a folder of modules is one."""
    files = [path.name for path in FOLDER.glob("*.py") if path.name != "common.py"]
    return sorted(files + [path.parent.name for path in FOLDER.glob("*/__main__.py")])


def test_the_page_lists_each_script() -> None:
    listed = re.findall(r"^python benchmarks/(\S+) ", (FOLDER / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(listed) == scripts()


@pytest.mark.parametrize("name", scripts())
def test_each_script_has_the_options_that_all_have(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(FOLDER / name), run_name="__main__")
    assert not ended.value.code
    shown = capsys.readouterr().out
    if name != "loader_soak.py":  # it measures nothing
        assert "--threads" in shown and "--json" in shown


def test_what_guards_compares_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])
    script = runpy.run_path(str(FOLDER / "guards.py"))
    found = script["measured"](2, rounds=1)  # it compares the results before it takes the times
    assert all(nanoseconds > 0 for nanoseconds in found.values())
