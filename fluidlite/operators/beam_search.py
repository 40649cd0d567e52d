"""beam_search: one step of a beam search, which selects the best continuations of each source's prefixes."""

from __future__ import annotations

from fluidlite.base.dtypes import FLOATS, INTS
from fluidlite.operators.inference import Inferred, all_dims_compatible, dims_compatible
from fluidlite.operators.sequence_rows import spec_with_lod
from fluidlite.program.op_call import Call
from fluidlite.program.opdef import Attr, Slot
from fluidlite.program.operator_options import Differentiation, Execution, Inference
from fluidlite.program.registry import register_op
from fluidlite.tensor.tensor_spec import Spec

_LOD_ADVICE = "start from ids and scores with a LoD of two levels, and give the scores theirs with layers.lod_reset"


def _infer(call: Call) -> Inferred:
    scores, level = call.spec("scores"), call.attr("level")
    if not scores.lod_level:
        call.fail("scores", "a LoD tensor: which prefixes each source has", do=_LOD_ADVICE)
    if level >= scores.lod_level:
        call.fail_attr("level", f"less than {scores.lod_level}, the levels of LoD of scores")
    call.need(scores.rank >= 1, "scores", "[prefixes, candidates]")
    rows = scores.dims[0]
    for slot in ("pre_ids", "pre_scores"):
        dims = call.dims(slot)
        is_column = (
            len(dims) in (1, 2) and dims_compatible(dims[0], rows) and all(dims_compatible(d, 1) for d in dims[1:])
        )
        call.need(is_column, slot, f"[{rows}, 1], one for each prefix: scores is {list(scores.dims)}")
    if call.spec("pre_scores").dtype != scores.dtype:
        call.fail("pre_scores", f"{scores.dtype}, as scores")
    ids = call.spec("pre_ids")
    if call.has("ids"):
        call.need(all_dims_compatible(call.dims("ids"), scores.dims), "ids", f"{list(scores.dims)}, the dims of scores")
        if call.spec("ids").dtype != ids.dtype:
            call.fail("ids", f"{ids.dtype}, as pre_ids")
    else:
        vocabulary = scores.dims[1] if scores.rank == 2 else -1
        call.need(scores.rank == 2, "scores", "[prefixes, vocabulary], where ids is left out")
        if 0 <= vocabulary <= call.attr("end_id"):
            call.fail_attr(
                "end_id", f"less than {vocabulary}, the columns of scores: ids is left out, so they are the words"
            )
    return {
        "selected_ids": spec_with_lod((-1, 1), ids, (), 2),
        "selected_scores": spec_with_lod((-1, 1), scores, (), 2),
        "parent_idx": Spec.of((-1,), "int32"),
    }


register_op(
    "beam_search",
    Differentiation(no_gradient={"pre_scores": "a selection has none", "scores": "a selection has none"}),
    Inference(_infer, dynamic=True, kernel_dtype="scores"),
    Execution(host_only="candidates of all prefixes of a source are compared on the host"),
    inputs=(
        Slot("pre_ids", doc="the last word of each prefix, [prefixes, 1]"),
        Slot("pre_scores", doc="the score of each prefix, [prefixes, 1]"),
        Slot("ids", dispensable=True, doc="candidates for the next word, as scores; left out: the columns of scores"),
        Slot("scores", doc="scores of candidates, [prefixes, candidates], with LoD: which prefixes each source has"),
    ),
    outputs=(
        Slot("selected_ids", doc="[selected, 1], with two levels of LoD: prefixes of sources, selected of prefixes"),
        Slot("selected_scores", doc="[selected, 1], with the same LoD"),
        Slot("parent_idx", dispensable=True, doc="the row of the prefix that each extends, [selected]"),
    ),
    attrs=(
        Attr("level", "int", 0, minimum=0, doc="the level of the LoD of scores that delimits sources"),
        Attr("beam_size", "int", minimum=1, doc="maximum number of prefixes that a source continues with"),
        Attr("end_id", "int", minimum=0, doc="the word that ends a prefix"),
        Attr("is_accumulated", "bool", True, doc="scores are of whole prefixes; False: probabilities of one word"),
    ),
    dtypes={"pre_ids": INTS, "pre_scores": FLOATS, "ids": INTS, "scores": FLOATS},
    doc="The beam_size best candidates of each source. A prefix that ended has one candidate: end_id, with its score. "
    "A source all of whose prefixes had ended before selects none. Selected are in the order of their prefixes, and "
    "the best of a prefix first",
    source="Fluid math/beam_search.cc; of equal scores the later prefix comes first, as there, and of one prefix the "
    "earlier candidate",
)
