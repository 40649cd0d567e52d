"""Samples and the reference of fluidlite.operators.hierarchical_sigmoid: one row and one branch at a time."""

from __future__ import annotations

import numpy as np

from fluidlite.conformance.sample_helpers import WIDE, Attrs, Inputs, Outputs, ints, rand, sigmoid
from fluidlite.conformance.samples import Sample, register_samples


def _samples() -> list[Sample]:
    def default(name: str, classes: int, rows: int, bias: bool = True, grads: bool = True) -> Sample:
        inputs = {"X": rand(rows, 4), "W": rand(classes - 1, 4, seed=1), "Label": ints(rows, 1, high=classes, seed=2)}
        if bias:
            inputs["Bias"] = rand(classes - 1, 1, seed=3)
        slots = ("X", "W", *(["Bias"] if bias else [])) if grads else ()
        return Sample(inputs, {"num_classes": classes}, slots, name=name, dtypes=WIDE)

    table = np.array([[0, 2, -1, -1], [0, 1, 4, -1], [0, 2, 3, 5]])
    custom = {"X": rand(3, 4), "W": rand(6, 4, seed=1), "Label": ints(3, 1, dtype="int32"), "PathTable": table}
    custom |= {"PathCode": np.array([[0, 1, -1, -1], [1, 0, 0, -1], [0, 1, 1, 0]]), "Bias": rand(6, 1, seed=3)}
    return [
        default("six_classes", 6, 5),
        default("two_classes", 2, 3, bias=False),
        default("eight_classes", 8, 3),
        default("no_rows", 3, 0, grads=False),
        Sample(custom, {"num_classes": 6}, ("X", "W", "Bias"), name="custom", dtypes=WIDE),
    ]


@register_samples("hierarchical_sigmoid", samples=_samples)
def _reference(inputs: Inputs, attrs: Attrs) -> Outputs:
    x, w, bias = inputs["X"], inputs["W"], inputs.get("Bias")
    classes = attrs["num_classes"]
    longest = inputs["PathTable"].shape[1] if "PathTable" in inputs else int(np.ceil(np.log2(classes)))
    scores, costs = np.zeros((len(x), longest)), np.full((len(x), 1), longest * np.log(2.0))
    for i, label in enumerate(inputs["Label"].reshape(-1)):
        if "PathTable" in inputs:
            nodes = inputs["PathTable"][i].tolist()
            nodes = nodes[: nodes.index(-1)] if -1 in nodes else nodes
            way = list(zip(nodes, inputs["PathCode"][i].tolist(), strict=False))
        else:
            digits = f"{classes + label:b}"  # from the root: 1, then one digit for each branch
            way = [(int(digits[:k], 2) - 1, int(digits[k])) for k in range(len(digits) - 1, 0, -1)]
        for k, (node, turn) in enumerate(way):
            scores[i, k] = x[i] @ w[node] + (0 if bias is None else bias.reshape(-1)[node])
            chance = sigmoid(scores[i, k])
            costs[i] -= np.log(2.0) + np.log(chance if turn else 1 - chance)
    return {"Out": costs, "PreOut": scores}
