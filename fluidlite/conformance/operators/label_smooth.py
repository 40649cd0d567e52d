from __future__ import annotations

from fluidlite.conformance.sample_helpers import EVERY, WIDE, Attrs, Inputs, Outputs, rand
from fluidlite.conformance.samples import Sample, register_samples


def _samples() -> list[Sample]:
    x, prior = rand(5, 4, low=0), rand(1, 4, low=0, seed=1)
    return [
        Sample({"X": x}, {}, ("X",), name="default"),
        Sample({"X": x}, {"epsilon": 0.1}, ("X",), name="uniform", dtypes=EVERY),
        Sample({"X": x, "PriorDist": prior}, {"epsilon": 0.3}, ("X",), name="prior", dtypes=EVERY),
        Sample({"X": rand(2, 3, 4), "PriorDist": prior}, {"epsilon": 0.3}, ("X",), name="rank3", dtypes=WIDE),
        Sample({"X": x, "PriorDist": prior.reshape(4, 1)}, {"epsilon": 0.3}, ("X",), name="column"),
        Sample({"X": rand(4), "PriorDist": prior[0]}, {"epsilon": 0.3}, ("X",), name="vector"),
        Sample({"X": rand(0, 4)}, {"epsilon": 0.3}, name="empty"),
    ]


@register_samples("label_smooth", samples=_samples)
def _reference(inputs: Inputs, attrs: Attrs) -> Outputs:
    x, e = inputs["X"], attrs["epsilon"]
    prior = inputs["PriorDist"].reshape(-1) if "PriorDist" in inputs else 1 / x.shape[-1]
    return {"Out": (1 - e) * x + e * prior}
