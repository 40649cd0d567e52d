"""The list of passes by phase; and what plugins bring: passes and transformers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import fluidlite.graph as ng
from fluidlite import plugin_loader
from fluidlite.base.errors import PluginWarning
from fluidlite.plugin import (
    Graph,
    GraphPass,
    PeepholeGraphPass,
    Transformer as Base,
    TransformerFactory,
    hookimpl,
    visit,
)
from fluidlite.program.pass_registry import PHASES
from fluidlite.transformers import (
    PassList,
    SimplifyArithmetic,
    Transformer,
    default_passes,
    make_transformer,
    make_transformer_factory,
    set_transformer_factory,
    transformer_choices,
)


class LogOfExp(PeepholeGraphPass):
    """log(exp(x)) becomes x."""

    @visit.on_type("log")
    def visit(self, op):
        (inner,) = op.args
        if inner.op is not None and inner.op.type == "exp":
            self.replace_op(op, inner.op.args[0])


class Late(GraphPass):
    """Does nothing, late."""

    phase = "schedule"

    def do_pass(self, graph: Graph) -> None:
        """Nothing."""


@pytest.fixture
def plugin() -> Iterator[Callable[..., Any]]:
    """``plugin(things...)`` loads a plugin that registers them with its fifth hook."""
    names: list[str] = []

    def load(*things: Any) -> Any:
        class Plugin:
            @hookimpl
            def register_passes(self, register: Any) -> None:
                for thing in things:
                    register(thing)

        names.append(f"acme {len(names)}")
        return plugin_loader.load(names[-1], Plugin())

    transformer_choices()
    yield load
    for name in names:
        plugin_loader.unload(name)


def types(computation: Any) -> list[str]:
    return [op.type for op in computation.transformed.operators]


def test_the_list_is_in_the_order_of_the_phases(cpu: Transformer) -> None:
    phases = [cpu.graph_passes.phase(item) for item in cpu.graph_passes]
    assert phases == sorted(phases, key=PHASES.index)
    assert {"prune", "simplify"} <= set(phases)
    lines = str(cpu.graph_passes).splitlines()
    assert lines[0].split() == ["prune", "DeadCode"]
    assert len(lines) == len(cpu.graph_passes)


def test_the_documentation_names_every_pass(cpu: Transformer) -> None:
    page = (Path(__file__).parents[2] / "docs" / "passes.md").read_text()
    assert [item.name for item in cpu.graph_passes if f"| `{item.name}` |" not in page] == []
    assert [phase for phase in PHASES if f"| `{phase}` |" not in page] == []


def test_a_pass_is_added_behind_those_of_its_phase(cpu: Transformer) -> None:
    cpu.register_graph_pass(mine := LogOfExp())
    cpu.register_graph_pass(last := Late())
    cpu.register_graph_pass(early := Late(), "prune")
    order = list(cpu.graph_passes)
    assert order[-1] is last
    assert order[1] is early
    assert cpu.graph_passes.phase(early) == "prune"
    assert isinstance(order[0], type(default_passes()[0]))
    behind = [cpu.graph_passes.phase(item) for item in order[order.index(mine) + 1 :]]
    assert "simplify" not in behind
    assert "schedule Late" in " ".join(str(cpu.graph_passes).split())


def test_each_transformer_has_its_own_list() -> None:
    one, other = make_transformer(), make_transformer()
    one.register_graph_pass(LogOfExp())
    assert len(one.graph_passes) == len(other.graph_passes) + 1
    assert all(a is not b for a in one.graph_passes for b in other.graph_passes)


def test_a_list_can_be_assigned(cpu: Transformer) -> None:
    cpu.graph_passes = [LogOfExp()]  # type: ignore[assignment]
    assert isinstance(cpu.graph_passes, PassList)
    assert str(cpu.graph_passes) == "simplify  LogOfExp"
    x = ng.placeholder(())
    computation = cpu.computation(ng.log(ng.exp(x)) * 1, x)
    assert computation(500) == 500
    assert types(computation) == ["fill_constant", "elementwise_mul"]


def test_the_passes_of_a_phase_make_work_for_each_other(cpu: Transformer) -> None:
    """log(exp(x)) shows once the product with 1 is gone."""
    cpu.graph_passes = [LogOfExp(), SimplifyArithmetic()]  # type: ignore[assignment]
    x = ng.placeholder(())
    computation = cpu.computation(ng.log(ng.exp(x) * 1), x)
    assert computation(700) == 700
    assert types(computation) == []


class Endless(GraphPass):
    """Makes a new operator each time."""

    runs = 0

    def do_pass(self, graph: Graph) -> None:
        """Replace every exp by a new one."""
        self.runs += 1
        for op in list(graph.ops):
            if op.type == "exp":
                graph.replace(op.value, graph.insert(op, "exp", {"X": op.args[0]}, {}))
        graph.prune()


def test_a_phase_ends(cpu: Transformer) -> None:
    cpu.register_graph_pass(endless := Endless())
    x = ng.placeholder(())
    assert cpu.computation(ng.exp(x), x)(0) == 1
    assert endless.runs == 10


@pytest.mark.parametrize(
    ("item", "phase", "word"),
    [
        (LogOfExp, None, "is no GraphPass"),
        (LogOfExp(), "later", "phase 'later'; the phases are prune, simplify"),
        (type("Odd", (LogOfExp,), {"phase": "never"})(), None, "phase 'never'"),
    ],
)
def test_what_cannot_be_added(item: Any, phase: Any, word: str, cpu: Transformer) -> None:
    with pytest.raises(ValueError, match=word):
        cpu.register_graph_pass(item, phase)
    with pytest.raises(ValueError, match=r"is no GraphPass|phase 'never'"):
        cpu.graph_passes = [item, 3]  # type: ignore[assignment]


# Plugins


def test_a_plugins_pass(plugin: Callable[..., Any]) -> None:
    without = make_transformer()
    record = plugin(LogOfExp(), Late())
    assert record.state == "loaded", record.error
    assert record.brought["passes"] == ["LogOfExp", "Late"]
    transformer, other = make_transformer(), make_transformer()
    assert "simplify LogOfExp (plugin 'acme 0')" in " ".join(str(transformer.graph_passes).split())
    assert "LogOfExp" not in str(without.graph_passes)
    assert not {id(item) for item in transformer.graph_passes} & {id(item) for item in other.graph_passes}
    x = ng.placeholder(())
    computation = transformer.computation(ng.log(ng.exp(x)), x)
    assert computation(500) == 500
    assert types(computation) == []
    plugin_loader.unload("acme 0")
    assert "LogOfExp" not in str(make_transformer().graph_passes)


class Raises(GraphPass):
    """Raises."""

    def do_pass(self, graph: Graph) -> None:
        """Divide."""
        raise ZeroDivisionError("by nothing")


class Reverses(GraphPass):
    """Breaks the graph."""

    phase = "prune"

    def do_pass(self, graph: Graph) -> None:
        """Turn it round."""
        graph.ops.reverse()


class Refuses(PeepholeGraphPass):
    """Replaces by other dims."""

    @visit.on_type("reduce_sum")
    def _sum(self, op: Any) -> None:
        self.replace_op(op, op.args[0])


@pytest.mark.parametrize(
    ("item", "text"),
    [
        (Raises(), r"pass Raises of plugin 'acme 0' failed: ZeroDivisionError: by nothing"),
        (Reverses(), r"pass Reverses of plugin 'acme 0' broke the graph: .* before .* makes it"),
        (Refuses(), r"pass Refuses of plugin 'acme 0': .* cannot be replaced"),
    ],
)
def test_a_plugins_pass_that_fails_is_named_with_it(item: Any, text: str, plugin: Callable[..., Any]) -> None:
    plugin(item)
    transformer = make_transformer()
    x = ng.placeholder((2,))
    computation = transformer.computation(ng.sum(ng.exp(x)), x)
    with pytest.raises(ValueError, match=text) as caught:
        computation([1, 2])
    assert caught.value.__cause__ is not None
    transformer.graph_passes = [p for p in transformer.graph_passes if p.name != item.name]  # type: ignore[assignment]
    assert computation([0, 0]) == 2, "the next call works"


class Nameless:
    """No pass: it has no do_pass."""

    name, phase = "nameless", "fuse"


@pytest.mark.parametrize(
    ("thing", "word"), [(3, "3 is no pass"), (Nameless(), "needs do_pass"), (Late, "is no pass"), (None, "is no pass")]
)
def test_what_a_plugin_cannot_register(thing: Any, word: str, plugin: Callable[..., Any]) -> None:
    with pytest.warns(PluginWarning, match=word):
        record = plugin(LogOfExp(), thing)
    assert record.state == "failed"
    assert "LogOfExp" not in str(make_transformer().graph_passes), "nothing of it is kept"


def test_two_passes_of_one_name(plugin: Callable[..., Any]) -> None:
    plugin(LogOfExp())
    with pytest.warns(PluginWarning, match="a pass called 'LogOfExp' is registered twice"):
        plugin(LogOfExp())
    assert str(make_transformer().graph_passes).count("LogOfExp") == 1


# Transformers of plugins


class Counting(Base):
    """A transformer that counts its executors."""

    def __init__(self, place: Any = None, seed: Any = None, start: int = 0) -> None:
        super().__init__(place, seed)
        self.made = start

    def transform_ordered_ops(self, computation: Any, ordered_ops: Any) -> Any:
        """Count."""
        self.made += 1
        return super().transform_ordered_ops(computation, ordered_ops)


def test_a_plugins_transformer(plugin: Callable[..., Any]) -> None:
    assert "counting" not in transformer_choices()
    plugin(TransformerFactory("counting", Counting, start=5))
    assert "counting" in transformer_choices()
    set_transformer_factory(make_transformer_factory("counting", seed=3))
    try:
        made = make_transformer()
    finally:
        set_transformer_factory(None)
    assert isinstance(made, Counting)
    assert made.seed == 3
    assert made.computation(ng.constant(2.0) * 3)() == 6
    assert made.made == 6
    with pytest.raises(ValueError, match=r"there is no transformer 'counting:1' here; the choices are .*counting"):
        make_transformer_factory("counting:1")
    plugin_loader.unload("acme 0")
    with pytest.raises(ValueError, match="there is no transformer 'counting' here"):
        make_transformer_factory("counting")


def test_a_plugins_transformer_for_a_kind_of_places(require: Callable[..., None], plugin: Callable[..., Any]) -> None:
    require("fpga")
    plugin(TransformerFactory("fpga", Counting))
    assert transformer_choices().count("fpga") == 1
    made = make_transformer_factory("fpga:0", start=1)()
    assert isinstance(made, Counting)
    assert str(made.place) == "fpga:0"
    assert made.computation(ng.constant(2.0) * 3)() == 6
    with pytest.raises(ValueError, match="there is no transformer 'fpga:77' here"):
        make_transformer_factory("fpga:77")


def test_a_factory_that_makes_nothing(plugin: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match="makes with 3; expected a class or a callable"):
        TransformerFactory("three", 3)  # type: ignore[arg-type]
    plugin(TransformerFactory("one", Counting))
    with pytest.warns(PluginWarning, match="a transformer factory called 'one' is registered twice"):
        plugin(TransformerFactory("one", Counting))
