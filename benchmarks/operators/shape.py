"""Operators that move elements, or only change dims."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.operators.case import Case, Inputs, Numbers, functional, image, side, square, torch, unary


def _images(numbers: Numbers, size: int) -> Inputs:
    return {"X": numbers.normal(*image(size))}


def _several(count: int, slot: str = "X") -> Callable[[Numbers, int], Inputs]:
    def make(numbers: Numbers, size: int) -> Inputs:
        n = side(size)
        return {slot: [numbers.normal(n // count, n) for _ in range(count)]}

    return make


def _thin(numbers: Numbers, size: int) -> Inputs:
    return {"X": numbers.normal(side(size), 1, side(size))}


def _heads(numbers: Numbers, size: int) -> Inputs:
    n, rows = max(size // 65_536, 1), max(side(size) // 16, 2)
    return {"X": numbers.normal(n, rows, size // (n * rows * 8), 8)}


def _part(numbers: Numbers, size: int) -> Inputs:
    n = side(size)
    return {"X": numbers.normal(n, n), "Y": numbers.normal(n - 3, n - 5)}


def _target(numbers: Numbers, size: int) -> Inputs:
    n = side(size)
    return {"X": numbers.normal(n // 4, n), "target_tensor": numbers.normal(n, n)}


def _lines(numbers: Numbers, size: int) -> Inputs:
    return {"X": [numbers.normal(side(size)), numbers.normal(side(size))]}


def _bounds(size: int) -> dict[str, Any]:
    n = side(size)
    return {"axes": [0, 1], "starts": [n // 8, n // 4], "ends": [n - 1, n - 3]}


def _crop(size: int) -> dict[str, Any]:
    n = side(size)
    return {"offsets": [n // 8, n // 4], "shape": [n // 2, n // 2]}


def _middle(x: Any) -> Any:
    return x[len(x) // 8 : -1, len(x) // 4 : -3]


def _quarter(x: Any) -> Any:
    half, eighth, fourth = len(x) // 2, len(x) // 8, len(x) // 4
    return x[eighth : eighth + half, fourth : fourth + half]


def _views(type: str, make: Any, function: Any, attrs: Any) -> list[Case]:
    """A reshaping and its form with XShape."""
    return [Case(each, make, function, function, attrs, ("X",)) for each in (type, type + "2")]


def _transposed(order: list[int], make: Any, name: str) -> list[Case]:
    return [
        Case(type, make, lambda x: np.ascontiguousarray(x.transpose(order)), lambda x: x.permute(order).contiguous(),
             {"axis": order}, ("X",), name=name)
        for type in ("transpose", "transpose2")
    ]  # fmt: skip


def _shuffled(x: Any, r: int) -> Any:
    n, c, h, w = x.shape
    return x.reshape(n, c // r**2, r, r, h, w).transpose(0, 1, 4, 2, 5, 3).reshape(n, c // r**2, h * r, w * r)


def _channels(x: Any, permuted: Any) -> Any:
    n, c, h, w = x.shape
    return permuted(x.reshape(n, 2, c // 2, h, w), (0, 2, 1, 3, 4)).reshape(n, c, h, w)


CASES = [
    *_views("reshape", square("X"), lambda x: x.reshape(-1, 4), {"shape": [-1, 4]}),
    *_views("flatten", _images, lambda x: x.reshape(len(x), -1), {"axis": 1}),
    *_views("squeeze", _thin, lambda x: x.squeeze(1), {"axes": [1]}),
    *_views("unsqueeze", square("X"), lambda x: x[:, None], {"axes": [1]}),
    *_transposed([1, 0], square("X"), ""),
    *_transposed([0, 2, 1, 3], _heads, "of heads"),
    Case("concat", _several(4), lambda *x: np.concatenate(x, 0), lambda *x: torch.cat(x, 0), grads=("X",)),
    Case("concat", _several(4), lambda *x: np.concatenate(x, 1), lambda *x: torch.cat(x, 1), {"axis": 1}, ("X",),
         name="of columns"),
    Case("split", square("X"), lambda x: [part.copy() for part in np.split(x, 4, 1)],
         lambda x: [part.clone() for part in torch.chunk(x, 4, 1)], {"num": 4, "axis": 1}, ("X",), counts={"Out": 4}),
    Case("stack", _several(4), lambda *x: np.stack(x, 1), lambda *x: torch.stack(x, 1), {"axis": 1}, ("X",), ("Y",)),
    Case("unstack", lambda numbers, size: {"X": numbers.normal(side(size), 4, side(size) // 4)},
         lambda x: [x[:, i].copy() for i in range(4)], lambda x: [x[:, i].clone() for i in range(4)],
         {"axis": 1, "num": 4}, ("X",), ("Y",), {"Y": 4}),
    Case("unbind", lambda numbers, size: {"X": numbers.normal(4, side(size), side(size) // 4)},
         lambda x: [part.copy() for part in x], lambda x: [part.clone() for part in x], {}, ("X",), counts={"Out": 4}),
    Case("slice", lambda numbers, size: {"Input": numbers.normal(side(size), side(size))},
         lambda x: _middle(x).copy(), lambda x: _middle(x).clone(), _bounds, ("Input",)),
    Case("strided_slice", lambda numbers, size: {"Input": numbers.normal(side(size), side(size))},
         lambda x: x[::2, ::2].copy(), lambda x: x[::2, ::2].clone(),
         lambda size: {"axes": [0, 1], "starts": [0, 0], "ends": [side(size)] * 2, "strides": [2, 2]}, ("Input",)),
    Case("crop", square("X"), lambda x: _quarter(x).copy(), lambda x: _quarter(x).clone(), _crop, ("X",)),
    Case("crop_tensor", square("X"), lambda x: _quarter(x).copy(), lambda x: _quarter(x).clone(), _crop, ("X",)),
    unary("pad", lambda x: np.pad(x, ((1, 2), (3, 4))), lambda x: functional.pad(x, (3, 4, 1, 2)),
          attrs={"paddings": [1, 2, 3, 4]}),
    *(
        Case("pad2d", _images, lambda x, mode=mode: np.pad(x, ((0, 0), (0, 0), (1, 1), (2, 2)), mode),
             lambda x, mode=eager: functional.pad(x, (2, 2, 1, 1), mode),
             {"paddings": [1, 1, 2, 2], "mode": mode}, ("X",), name=f"by {mode}")
        for mode, eager in (("constant", "constant"), ("reflect", "reflect"), ("edge", "replicate"))
    ),
    Case("pad_constant_like", _part, lambda x, y: np.pad(y, ((0, 3), (0, 5))),
         lambda x, y: functional.pad(y, (0, 5, 0, 3)),
         {}, ("Y",)),
    Case("expand", lambda numbers, size: {"X": numbers.normal(side(size) // 2, side(size) // 4)},
         lambda x: np.tile(x, (2, 4)), lambda x: x.repeat(2, 4), {"expand_times": [2, 4]}, ("X",)),
    Case("expand_as", _target, lambda x, y: np.tile(x, (4, 1)), lambda x, y: x.repeat(4, 1), {}, ("X",)),
    unary("flip", lambda x: np.flip(x, 1).copy(), lambda x: torch.flip(x, [1]), attrs={"dims": [1]}),
    unary("reverse", lambda x: np.flip(x, 0).copy(), lambda x: torch.flip(x, [0]), attrs={"axis": [0]}),
    unary("roll", lambda x: np.roll(x, 3, 1), lambda x: torch.roll(x, 3, 1), attrs={"shifts": [3], "dims": [1]}),
    unary("tril_triu", np.tril, lambda x: torch.tril(x), attrs={"lower": True}),
    Case("meshgrid", _lines, lambda x, y: [part.copy() for part in np.meshgrid(x, y, indexing="ij")],
         lambda x, y: [part.contiguous() for part in torch.meshgrid(x, y, indexing="ij")], {}, ("X",),
         counts={"Out": 2}),
    Case("pixel_shuffle", _images, lambda x: _shuffled(x, 2), lambda x: functional.pixel_shuffle(x, 2),
         {"upscale_factor": 2}, ("X",)),
    Case("shuffle_channel", _images, lambda x: _channels(x, np.transpose),
         lambda x: _channels(x, torch.permute), {"group": 2}, ("X",)),
    Case("space_to_depth", _images, None, None, {"blocksize": 2}, ("X",)),
    Case("temporal_shift", lambda numbers, size: {"X": numbers.normal(*(d * s for d, s in zip(image(size), (4, 1, 1, 1),
                                                                                              strict=True)))},
         None, None, {"seg_num": 4}, ("X",), share=0.25),
    Case("im2sequence", _images, None, None, {"kernels": [3, 3]}, ("X",), share=0.125),
    Case("shape", lambda numbers, size: {"Input": numbers.normal(side(size), side(size))},
         lambda x: np.asarray(x.shape, np.int32), lambda x: torch.tensor(x.shape, dtype=torch.int32)),
    Case("size", lambda numbers, size: {"Input": numbers.normal(side(size), side(size))},
         lambda x: np.asarray([x.size]), lambda x: torch.tensor([x.numel()])),
    Case("is_empty", square("X"), lambda x: np.asarray([x.size == 0]), lambda x: torch.tensor([x.numel() == 0])),
]  # fmt: skip
