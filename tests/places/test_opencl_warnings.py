"""What a compiler only remarks on does not reach the user, or end a run where warnings are errors."""

from __future__ import annotations

import uuid

import pytest

from fluidlite.platform.pool import get_context


@pytest.mark.opencl
def test_a_remark_of_the_compiler_is_no_warning() -> None:
    context = get_context("opencl")
    name = f"remarked_{uuid.uuid4().hex}"  # no compiled program of an earlier run is found
    source = f"__kernel void {name}(__global int* out) {{ int i = get_global_id(0); out[i] = i < i; }}"
    assert context.unit.dialect.compile(context.raw, source, name, ("buffer",)) is not None
