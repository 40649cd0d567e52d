from __future__ import annotations

from math import prod

import numpy as np

from fluidlite.conformance.sample_helpers import EVERY, NUMBERS, WIDE, pair, rand
from fluidlite.conformance.samples import Sample, register_samples
from fluidlite.tensor.tensor_spec import Dims

register_samples(
    "bmm",
    reference=lambda inputs, attrs: {"Out": np.einsum("bij,bjk->bik", inputs["X"], inputs["Y"])},
    samples=lambda: [
        Sample(pair((2, 3, 4), (2, 4, 5)), {}, ("X", "Y"), name="batches", dtypes=EVERY),
        Sample(pair((1, 1, 1), (1, 1, 1)), {}, ("X", "Y"), name="one"),
        Sample(pair((3, 17, 20), (3, 20, 18)), {}, name="tiles", dtypes=WIDE),
        Sample(pair((0, 3, 4), (0, 4, 2)), {}, name="no_batch"),
    ],
)


_ADDMM_IN = ("Input", "X", "Y")


def _samples_addmm() -> list[Sample]:
    def case(name: str, dims: Dims, dtypes: tuple[str, ...] = ("float32",), **attrs: float) -> Sample:
        return Sample(
            {"Input": rand(*dims, seed=2), **pair((4, 3), (3, 5))}, attrs, _ADDMM_IN, name=name, dtypes=dtypes
        )

    return [
        case("plain", (4, 5), EVERY),
        case("factors", (4, 5), WIDE, Alpha=2.0, Beta=-0.5),
        case("row", (1, 5), Alpha=0.5),
        case("column", (4, 1), Beta=3.0),
        case("number", (1, 1)),
        Sample({"Input": rand(0, 5), **pair((0, 3), (3, 5))}, {"Beta": 2.0}, name="no_rows"),
    ]


register_samples(
    "addmm",
    reference=lambda inputs, attrs: {
        "Out": attrs["Beta"] * inputs["Input"] + attrs["Alpha"] * np.einsum("ij,jk->ik", inputs["X"], inputs["Y"])
    },
    samples=_samples_addmm,
)


register_samples(
    "kron",
    reference=lambda inputs, attrs: {"Out": np.kron(inputs["X"], inputs["Y"])},
    samples=lambda: [
        Sample(pair((2, 3), (4, 2)), {}, ("X", "Y"), name="matrices", dtypes=NUMBERS),
        Sample(pair((3,), (4,)), {}, ("X", "Y"), name="vectors", dtypes=WIDE),
        Sample(pair((2, 1, 3), (2, 2)), {}, ("X", "Y"), name="ranks"),
        Sample(pair((2,), (3, 2, 2)), {}, ("X", "Y"), name="small_x"),
        Sample(pair((2, 0), (3, 2)), {}, name="empty"),
    ],
)


register_samples(
    "fsp",
    reference=lambda inputs, attrs: {
        "Out": np.einsum("nahw,nbhw->nab", inputs["X"], inputs["Y"]) / prod(inputs["X"].shape[2:])
    },
    samples=lambda: [
        Sample(pair((2, 3, 4, 5), (2, 4, 4, 5)), {}, ("X", "Y"), name="images", dtypes=EVERY),
        Sample(pair((1, 1, 1, 1), (1, 2, 1, 1)), {}, ("X", "Y"), name="pixel"),
        Sample(pair((0, 3, 4, 5), (0, 4, 4, 5)), {}, name="no_images"),
    ],
)
