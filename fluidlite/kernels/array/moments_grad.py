"""Gradients of normalising in host memory, part by part; see ``moments_host``."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from fluidlite.plugin import Context

from .moments import View
from .moments_host import Array, Lines, Parts, Work, affine, finish, fold_of, joined, shaped, tiled
from .threads import each_part


class Gradients:
    """The gradients of one run.

    Parameters
    ----------
    x, dy : arrays
    dx : array or None
        Where the gradient of x goes, if it is wanted.
    mean, inverse : arrays
        The latter 1 / sqrt(variance + epsilon).
    scale : array or None
    fixed : bool
        Whether mean and variance do not depend on x.
    wanted : bool
        Whether gradients of scale and bias are wanted: then ``dscale`` and ``dbias`` are set.
    """

    def __init__(
        self, context: Context, view: View, x: Array, dy: Array, dx: Array | None,
        mean: Array, inverse: Array, scale: Array | None, fixed: bool, wanted: bool, kind: Any,
    ) -> None:  # fmt: skip
        self.context, self.view, self.kind = context, view, kind
        self.x, self.dy, self.dx = x, dy, dx
        self.mean, self.inverse, self.scale = mean, inverse, scale
        self.fixed, self.wanted = fixed, wanted
        self.dscale: Array | None = None
        self.dbias: Array | None = None
        if view.columns:
            self._columns()
        elif view.parameter[-1] != 1 and len(view.dims) == 2:
            self._along()
        else:
            self._across()

    def _across(self) -> None:
        """Scale and bias are constant along what is summed at full size."""
        view, kind, count = self.view, self.kind, self.view.elements
        lines = Lines(view, kind)
        parts = Parts(lines.dims, lines.split, kind)
        x, dy = self.x.reshape(lines.dims), self.dy.reshape(lines.dims)
        dx = None if self.dx is None else self.dx.reshape(lines.dims)
        mean, inverse, scale = (lines.small(each) for each in (self.mean, self.inverse, self.scale))
        assert mean is not None and inverse is not None
        sums, products = (np.empty(lines.slim, kind) for _ in range(2))
        plain = self.fixed and not self.wanted

        def worker() -> Work:
            widen_x, widen_dy = parts.widened(x), parts.widened(dy)
            memory = None if plain else parts.scratch()
            more = parts.scratch() if lines.last and not plain else None
            written = None if dx is None else parts.written(dx)

            def work(part: int) -> None:
                given, inv = widen_dy(parts.of(dy, part)), parts.of(inverse, part)
                weight = kind(1) if scale is None else parts.of(scale, part)
                if memory is not None:
                    centred = shaped(memory, given)
                    np.subtract(widen_x(parts.of(x, part)), parts.of(mean, part), centred)
                    one, other = parts.of(sums, part), parts.of(products, part)
                    one[...] = lines.total(given)
                    np.multiply(lines.products(given, centred, more), inv, other)
                if dx is None or written is None:
                    return
                target = parts.of(dx, part)
                out = written(target)
                np.multiply(given, inv * weight, out)
                if not self.fixed:
                    first, second = (lines.joined(each * weight) / count for each in (one, other))
                    np.multiply(centred, (inv * inv * second).astype(kind), centred)
                    np.subtract(out, centred, out)
                    np.subtract(out, (inv * first).astype(kind), out)
                finish(target, out)

            return work

        each_part(self.context, parts.number, worker)
        if self.wanted:
            if lines.last:
                self.dscale, self.dbias = (np.add.reduce(each, (0, 1), np.float64) for each in (products, sums))
                return
            others = tuple(axis for axis in range(len(view.dims)) if axis not in view.channels)
            self.dscale, self.dbias = (np.add.reduce(each, others, np.float64) for each in (products, sums))

    def _along(self) -> None:
        """Scale and bias differ along the last axis of a matrix, which is reduced."""
        view, kind, x, dy, dx = self.view, self.kind, self.x, self.dy, self.dx
        mean, inverse, scale, count = self.mean, self.inverse, self.scale, self.view.elements
        parts, columns = Parts(view.dims, 0, kind), prod(view.parameter)
        sums, products = (np.empty((parts.number, columns), kind) for _ in range(2))

        def worker() -> Work:
            widen_x, widen_dy = parts.widened(x), parts.widened(dy)
            normal_memory, memory = parts.scratch(), parts.scratch()
            ones = np.ones(parts.size // columns if columns else 0, kind)

            def work(part: int) -> None:
                given, inv = widen_dy(parts.of(dy, part)), parts.of(inverse, part)
                normal, product = shaped(normal_memory, given), shaped(memory, given)
                np.subtract(widen_x(parts.of(x, part)), parts.of(mean, part), normal)
                np.multiply(normal, inv, normal)
                if self.wanted:
                    np.multiply(given, normal, product)
                    one = ones[: given.size // columns]
                    np.matmul(one, product.reshape(-1, columns), out=products[part])
                    np.matmul(one, given.reshape(-1, columns), out=sums[part])
                if dx is None:
                    return
                weighted = given if scale is None else np.multiply(given, scale, product)
                first = np.add.reduce(weighted, -1, keepdims=True) / kind(count)
                second = np.vecdot(weighted, normal)[:, None] / kind(count)
                np.multiply(normal, second, normal)
                np.subtract(weighted, normal, normal)
                np.subtract(normal, first, normal)
                np.multiply(normal, inv, parts.of(dx, part), casting="unsafe")

            return work

        each_part(self.context, parts.number, worker)
        if self.wanted:
            self.dscale, self.dbias = (np.add.reduce(each, 0, np.float64) for each in (products, sums))

    def _columns(self) -> None:
        """Columns of a matrix are normalised: all sums come before the first element of dx."""
        kind, (rows, columns) = self.kind, self.view.dims
        fold = fold_of(rows, columns)
        x, dy = joined(self.x, fold), joined(self.dy, fold)
        mean, inverse = (tiled(each, fold) for each in (self.mean, self.inverse))
        parts = Parts(x.shape, 0, kind)
        factor = self.inverse if self.scale is None else self.inverse * self.scale
        if self.wanted or not self.fixed:
            sums, products = (np.empty((parts.number, fold, columns), kind) for _ in range(2))

            def summing() -> Work:
                widen_x, widen_dy, memory = parts.widened(x), parts.widened(dy), parts.scratch()
                ones = np.ones(parts.step, kind)

                def work(part: int) -> None:
                    given = widen_dy(parts.of(dy, part))
                    out, one = shaped(memory, given), ones[: len(given)]
                    np.subtract(widen_x(parts.of(x, part)), mean, out)
                    np.multiply(out, given, out)
                    sums[part] = (one @ given).reshape(fold, columns)
                    products[part] = (one @ out * inverse).reshape(fold, columns)

                return work

            each_part(self.context, parts.number, summing)
            self.dscale, self.dbias = (np.add.reduce(each, (0, 1), np.float64) for each in (products, sums))
        if self.dx is None:
            return
        if self.fixed:
            affine(self.context, self.dy, self.dx, factor, None, None, kind)
            return
        dx = joined(self.dx, fold)
        assert self.dscale is not None and self.dbias is not None
        slope = tiled((-factor * self.inverse * self.dscale / rows).astype(kind), fold)
        shift = tiled((factor * self.dbias / rows).astype(kind), fold)
        factor = tiled(factor, fold)

        def adding() -> Work:
            widen_x, widen_dy, memory = parts.widened(x), parts.widened(dy), parts.scratch()
            written = parts.written(dx)

            def work(part: int) -> None:
                given, target = widen_dy(parts.of(dy, part)), parts.of(dx, part)
                centred, out = shaped(memory, given), written(target)
                np.subtract(widen_x(parts.of(x, part)), mean, centred)
                np.multiply(centred, slope, centred)
                np.multiply(given, factor, out)
                np.add(out, centred, out)
                np.subtract(out, shift, out)
                finish(target, out)

            return work

        each_part(self.context, parts.number, adding)
