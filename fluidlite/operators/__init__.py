"""WHAT operators mean: one short file a family. Importing this package declares them all."""

from fluidlite.operators import (
    activations,
    assign_cast,
    compare,
    concat_split,
    creation,
    crf,
    dropout,
    elementwise,
    feed_fetch,
    index,
    linear_algebra,
    loss,
    maxout,
    metrics,
    optimizers,
    reduce,
    shape,
    slice_crop,
    softmax,
)

__all__: list[str] = []

_families = (
    activations, assign_cast, compare, concat_split, creation, crf, dropout, elementwise, feed_fetch, index,
    linear_algebra, loss, maxout, metrics, optimizers, reduce, shape, slice_crop, softmax,
)  # fmt: skip
