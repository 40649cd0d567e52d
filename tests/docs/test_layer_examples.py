"""Each declared layer has an example in its documentation, which is executed and printed as it says."""

from __future__ import annotations

import doctest
import inspect
from collections.abc import Iterator
from typing import Any

import pytest

import fluidlite as fluid

LAYERS = {name: getattr(fluid.layers, name) for name in sorted(set(fluid.layers.__all__))}
LAYERS |= {"fluid.embedding": fluid.embedding, "fluid.one_hot": fluid.one_hot}
DECLARED = {name: layer for name, layer in LAYERS.items() if hasattr(layer, "declaration")}
FAMILIES = sorted({layer.__module__ for layer in DECLARED.values()})


@pytest.fixture(autouse=True)
def empty() -> Iterator[None]:
    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
        yield


def failed(name: str, layer: Any) -> list[str]:
    """What a run of a layer's example printed otherwise."""
    example = doctest.DocTestParser().get_doctest(inspect.getdoc(layer) or "", {}, name, None, None)
    printed: list[str] = []
    if not example.examples:
        return [f"{name} has no example"]
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        doctest.DocTestRunner(verbose=False).run(example, out=printed.append)
    return printed


@pytest.mark.parametrize("family", FAMILIES)
def test_examples(family: str) -> None:
    of_family = {name: layer for name, layer in DECLARED.items() if layer.__module__ == family}
    assert [line for name, layer in of_family.items() for line in failed(name, layer)] == []


def test_most_layers_are_declared() -> None:
    assert len(DECLARED) >= 180


def test_an_example_that_prints_otherwise_is_found() -> None:
    def layer() -> None:
        """
        >>> from fluidlite import data
        >>> from fluidlite.layers import relu
        >>> relu(data("x", [2, 4])).shape
        (2, 5)
        """

    assert "Expected" in "".join(failed("layer", layer))
