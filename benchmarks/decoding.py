"""How many words a second beam search translates, and how many in PyTorch if it is there.

    python benchmarks/decoding.py [--place PLACE] [--rounds N] [--sentences N] [--json FILE]

The model is that of ``examples/book/machine_translation.py``: an encoder of two GRUs, attention, a GRU and a beam of 4,
with first weights, of which none ends a sentence: each has 12 words. PyTorch does the same, eagerly, on the same
weights, and finds the same words. Both run in turns; figures are the least of the rounds, of the process: what else the
machine does is not in them. A word is one of the best translation; for each, four beams are scored.
"""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable
from typing import Any

from common import ROOT, fix_environment, in_turns, machine, options, report, show


def _fluidlite(place: str, mode: str, book: Any, feed: dict[str, Any], weights: dict[str, Any]) -> Callable[[], Any]:
    """The book's program that translates; ``weights`` gets its parameters, or gives them if there are some."""
    import numpy as np

    import fluidlite as fluid

    main, startup, scope = fluid.Program(), fluid.Program(), fluid.Scope()
    startup.random_seed = 1
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        words = book.translation_program()
    executor = fluid.Executor(place, mode=mode, fallback="allow")
    with fluid.scope_guard(scope):
        executor.run(startup)
        for parameter in main.all_parameters():
            tensor = scope.var(parameter.name).get_tensor()
            array = np.array(tensor)
            if parameter.name == "word_b":
                array[book.EOS] = -30
            weights.setdefault(parameter.name, array)
            tensor.set(weights[parameter.name], executor.place)
    return lambda: executor.run(main, feed, [words], scope=scope)[0]


def _torch(threads: int, book: Any, feed: dict[str, Any], weights: dict[str, Any]) -> Callable[[], Any]:
    """The same in PyTorch, eagerly."""
    import torch

    torch.set_num_threads(threads)
    w = {name: torch.from_numpy(array) for name, array in weights.items()}
    source, length = (torch.from_numpy(feed[name]) for name in ("source", "source_length"))
    rows, steps = source.shape
    beam, hidden, count = book.BEAM_SIZE, book.HIDDEN_DIM, len(book.TARGET_DICT)

    def gru(name: str, x: Any, h: Any) -> Any:
        gates = torch.sigmoid(torch.addmm(w[f"{name}_gates_b"], torch.cat((x, h), 1), w[f"{name}_gates_w"]))
        reset, update = gates.split(hidden, 1)
        inputs = torch.cat((x, reset * h), 1)
        candidate = torch.tanh(torch.addmm(w[f"{name}_candidate_b"], inputs, w[f"{name}_candidate_w"]))
        return update * h + (1 - update) * candidate

    def encoded() -> tuple[Any, Any]:
        words, outputs, states = w["source_words"][source], [], []
        for way, order in (("forward", range(steps)), ("backward", range(steps - 1, -1, -1))):
            h, found = torch.zeros(rows, hidden), [torch.empty(0)] * steps
            for t in order:
                new = found[t] = gru(way, words[:, t], h)
                h = torch.where(length > t, new, h)
            outputs.append(torch.stack(found, 1))
            states.append(h)
        sentence = torch.tanh(torch.addmm(w["first_b"], torch.cat(states, 1), w["first_w"]))
        return torch.cat(outputs, 2), sentence

    def translate() -> Any:
        with torch.inference_mode():
            outputs, h = encoded()
            outputs, h = outputs.repeat_interleave(beam, 0), h.repeat_interleave(beam, 0)
            keys = outputs @ w["key_w"]
            inside = (torch.arange(steps) < length).float().repeat_interleave(beam, 0)
            masked, first = (inside - 1) * 1e9, torch.arange(rows)[:, None] * beam
            ids = torch.full((rows * beam,), book.BOS)
            total = torch.tensor([0.0] + [-1e9] * (beam - 1)).repeat(rows, 1)
            done = torch.zeros(rows, beam, dtype=torch.bool)
            others = torch.full((count,), -1e9)
            others[book.EOS] = 0
            every, parents = [], []
            for _ in range(book.TARGET_LENGTH):
                scores = (torch.tanh(keys + (h @ w["query_w"])[:, None]) @ w["score_w"])[:, :, 0] + masked
                context = (outputs * torch.softmax(scores, 1)[:, :, None]).sum(1)
                h = gru("decoder", torch.cat((w["target_words"][ids], context), 1), h)
                logs = torch.log_softmax(torch.addmm(w["word_b"], h, w["word_w"]), 1).view(rows, beam, count)
                logs = torch.where(done[:, :, None], others, logs) + total[:, :, None]
                total, at = logs.view(rows, -1).topk(beam, 1)
                parent, word = at // count, at % count
                done = done.gather(1, parent) | (word == book.EOS)
                h, ids = h[(parent + first).view(-1)], word.view(-1)
                every.append(word)
                parents.append(parent)
                if bool(done.all()):
                    break
            found, beams = [], torch.arange(beam).repeat(rows, 1)
            for word, parent in zip(reversed(every), reversed(parents), strict=True):
                found.append(word.gather(1, beams))
                beams = parent.gather(1, beams)
            return torch.stack(found[::-1], 1).numpy()

    return translate


def main() -> None:
    """Time, print and write."""
    parser = options(__doc__)
    parser.add_argument("--place", default="cpu")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--sentences", type=int, default=64)
    given = parser.parse_args()
    if importlib.util.find_spec("num2words") is None:
        sys.exit("num2words is not installed: pip install 'fluidlite[books]'")
    fix_environment(given.threads)
    import numpy as np

    sys.path.insert(0, str(ROOT / "examples" / "book"))
    import machine_translation as book
    from _translating import feed_of

    samples = list(book.reader(test=True)())[: given.sentences]
    feed = feed_of(samples, book.COLUMNS, ("source", "source_length"))
    weights: dict[str, Any] = {}
    contenders = {
        name: _fluidlite(given.place, mode, book, feed, weights)
        for name, mode in (("fluidlite, compiled", "compiled"), ("fluidlite, interpreted", "interpreted"))
    }
    if importlib.util.find_spec("torch") is not None:
        contenders["torch, eager"] = _torch(given.threads, book, feed, weights)
    found = {name: call() for name, call in contenders.items()}
    first = next(iter(found.values()))
    for name, words in found.items():
        same = float(np.mean(words[:, :, 0] == first[:, :, 0])) if words.shape == first.shape else 0.0
        if same < 0.99:  # near ties may fall to the other side
            sys.exit(f"{name} finds other words: {same:.1%} are the same")
    count = first.shape[0] * first.shape[1]
    times = in_turns(contenders, given.rounds, clock=time.process_time)
    best = times["fluidlite, compiled"].least
    rows = [(name, of.least * 1e3, count / of.least, of.least / best) for name, of in times.items()]
    show(f"{len(first)} sentences of {first.shape[1]} words on {given.place}, a beam of {book.BEAM_SIZE}",
         ("translated by", "ms", "words a second", "to compiled"), rows)  # fmt: skip
    if "torch, eager" not in contenders:
        print("\nPyTorch is not installed here: no peer was measured.")
    facts = machine(given.threads, place=given.place)
    report(given.json, facts, {name: count / of.least for name, of in times.items()})


if __name__ == "__main__":
    main()
