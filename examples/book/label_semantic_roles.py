"""Label semantic roles: the seventh chapter, by eight stacked LSTMs and a CRF.

A sentence is a logical line of the standard library's source, split into words by `tokenize`. A predicate is a call in
it; its roles are the object of the call (A0), its first and second argument (A1, A2), and further or named ones
(AM), by the brackets and commas of the line. A line with several calls is several samples, with different roles.

As in the chapter, a word's features are itself, the predicate, five words around the predicate, and a mark of these.
Tags are in the scheme IOB: B-A0, I-A0, B-A1, ..., O. The metric counts whole roles.

python examples/book/label_semantic_roles.py [place]
"""

from __future__ import annotations

import collections
import functools
import io
import itertools
import keyword
import random
import sysconfig
import tokenize
from pathlib import Path

import numpy as np

import fluidlite as fluid

DATA = "calls in the source of Python's standard library, split by tokenize (real)"
METRIC, GOAL, BETTER = "F1 of the roles, test part", 0.72, "higher"
STEPS = 300
WORD_DIM, MARK_DIM, HIDDEN_DIM, DEPTH, BATCH_SIZE = 32, 5, 128, 8, 32
ROLES = ("A0", "A1", "A2", "AM")
OUTSIDE = 2 * len(ROLES)
MIN_WORD_FREQ, MAX_WORDS, SAMPLES = 5, 16, 4000
MODULES = (
    "argparse calendar codecs configparser csv datetime difflib doctest fractions inspect mailbox optparse pickle pydoc"
    " random shutil smtplib socket statistics string subprocess tarfile tempfile threading turtle uuid"
)
CLOSING = {"(": ")", "[": "]", "{": "}"}


def lines(source):
    """The words of each logical line; strings and numbers are one word each. Lines with f-strings are skipped."""
    words, usable = [], True
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.NEWLINE:
            if usable and len(words) <= MAX_WORDS:
                yield words
            words, usable = [], True
        elif token.type == tokenize.STRING:
            usable = usable and "f" not in token.string.lower().split(token.string[-1])[0]
            words.append("<string>")
        elif token.type in (tokenize.NAME, tokenize.OP, tokenize.NUMBER):
            words.append("<number>" if token.type == tokenize.NUMBER else token.string)
        elif tokenize.tok_name[token.type].startswith(("FSTRING", "TSTRING")):
            usable = False


def receiver(words, dot):
    """The start of the expression before a dot: names and brackets, joined by dots."""
    start = dot
    while start > 0:
        depth = 0
        while start > 0:  # skip brackets, up to the name before them, or a string
            start -= 1
            depth += (words[start] in CLOSING.values()) - (words[start] in CLOSING)
            prior = words[start - 1] if start else ""
            if depth <= 0 and not (words[start] in CLOSING and (prior.isidentifier() or prior in CLOSING.values())):
                break
        if start == 0 or words[start - 1] != ".":
            break
        start -= 1
    return start


def roles(words, verb):
    """The tags of the call whose name is at ``verb``, or None if its bracket does not close."""
    tags = [OUTSIDE] * len(words)

    def tag(start, end, role):
        tags[start:end] = [2 * role, *[2 * role + 1] * (end - start - 1)][: max(end - start, 0)]

    if verb > 1 and words[verb - 1] == ".":
        tag(receiver(words, verb - 1), verb - 1, 0)
    depth, start, argument = 0, verb + 2, 1
    for position in range(verb + 1, len(words)):
        depth += (words[position] in CLOSING) - (words[position] in CLOSING.values())
        if (depth == 1 and words[position] == ",") or depth == 0:
            named = start + 1 < position and words[start + 1] == "="
            tag(start, position, min(argument, 3) if not named else 3)
            start, argument = position + 1, argument + 1
        if depth == 0:
            return tags
    return None


@functools.cache
def load():
    """A sample for each call: words, the position of the call's name, tags; in a fixed random order."""
    samples = []
    for name in MODULES.split():
        path = Path(sysconfig.get_path("stdlib"), f"{name}.py")
        for words in lines(path.read_text("utf-8")) if path.exists() else ():
            for verb, (word, next_word) in enumerate(itertools.pairwise(words)):
                is_call = next_word == "(" and word.isidentifier() and not keyword.iskeyword(word)
                if is_call and words[0] not in ("def", "class", "@") and (tags := roles(words, verb)):
                    samples.append((words, verb, tags))
    samples = list({(*words, verb): (words, verb, tags) for words, verb, tags in samples}.values())
    random.Random(0).shuffle(samples)
    return samples[:SAMPLES]


@functools.cache
def word_dict():
    """Indices of the frequent words; all others share that of <unk>; <out> pads a line at both ends."""
    counts = collections.Counter(itertools.chain.from_iterable(words for words, _, _ in load()))
    words = sorted(word for word, count in counts.items() if count >= MIN_WORD_FREQ)
    return {word: index for index, word in enumerate(["<unk>", "<out>", *words])}


def reader(test: bool):
    """Return a reader of nine sequences: the features of the words, and their tags; every tenth is for tests."""

    def samples():
        indices = word_dict()
        for sample_number, (words, verb, tags) in enumerate(load()):
            if (sample_number % 10 == 0) == test:
                ids = [indices.get(word, 0) for word in words]
                context = [ids[i] if 0 <= i < len(ids) else indices["<out>"] for i in range(verb - 2, verb + 3)]
                mark = [int(abs(i - verb) <= 2) for i in range(len(ids))]
                yield ids, *([word] * len(ids) for word in (*context, ids[verb])), mark, tags

    return samples


TRAIN, TEST = reader(test=False), reader(test=True)
FEATURES = (
    "word_data",
    "ctx_n2_data",
    "ctx_n1_data",
    "ctx_0_data",
    "ctx_p1_data",
    "ctx_p2_data",
    "verb_data",
    "mark_data",
)


def db_lstm(word, ctx_n2, ctx_n1, ctx_0, ctx_p1, ctx_p2, predicate, mark):
    """Eight stacked LSTMs, every second one reversed; each also reads the input sums of the layer below."""
    predicate_embedding = fluid.layers.embedding(
        input=predicate, size=[len(word_dict()), WORD_DIM], dtype="float32", param_attr="vemb"
    )
    mark_embedding = fluid.layers.embedding(input=mark, size=[2, MARK_DIM], dtype="float32")
    word_input = [word, ctx_n2, ctx_n1, ctx_0, ctx_p1, ctx_p2]
    emb_layers = [
        fluid.layers.embedding(size=[len(word_dict()), WORD_DIM], input=x, param_attr=fluid.ParamAttr(name="emb"))
        for x in word_input
    ]
    emb_layers += [predicate_embedding, mark_embedding]
    hidden_0 = fluid.layers.sums(input=[fluid.layers.fc(input=emb, size=HIDDEN_DIM, act="tanh") for emb in emb_layers])
    activations = {"candidate_activation": "relu", "gate_activation": "sigmoid", "cell_activation": "sigmoid"}
    lstm_0, _cell = fluid.layers.dynamic_lstm(input=hidden_0, size=HIDDEN_DIM, **activations)
    input_tmp = [hidden_0, lstm_0]
    for i in range(1, DEPTH):
        mix_hidden = fluid.layers.sums(
            input=[fluid.layers.fc(input=layer, size=HIDDEN_DIM, act="tanh") for layer in input_tmp]
        )
        lstm, _cell = fluid.layers.dynamic_lstm(input=mix_hidden, size=HIDDEN_DIM, is_reverse=i % 2 == 1, **activations)
        input_tmp = [mix_hidden, lstm]
    return fluid.layers.sums(input=[fluid.layers.fc(input=layer, size=OUTSIDE + 1, act="tanh") for layer in input_tmp])


def train(place, folder, steps=STEPS, on_step=lambda exe, step, loss: None):
    """Train, save the model, and return its tags of the test part."""
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 1
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        features = [fluid.layers.data(name=name, shape=[1], dtype="int64", lod_level=1) for name in FEATURES]
        target = fluid.layers.data(name="target", shape=[1], dtype="int64", lod_level=1)
        feature_out = db_lstm(*features)
        crf_cost = fluid.layers.linear_chain_crf(
            input=feature_out, label=target, param_attr=fluid.ParamAttr(name="crfw", learning_rate=1.0)
        )
        avg_cost = fluid.layers.mean(crf_cost)
        crf_decode = fluid.layers.crf_decoding(input=feature_out, param_attr=fluid.ParamAttr(name="crfw"))
        test_program = main.clone(for_test=True)
        fluid.optimizer.Adam(learning_rate=0.005).minimize(avg_cost)

    random.seed(0)
    batches = fluid.batch(fluid.reader.shuffle(TRAIN, buf_size=8192), batch_size=BATCH_SIZE, drop_last=True)
    feeder = fluid.DataFeeder(feed_list=[*features, target], place=place)
    exe = fluid.Executor(place)
    with fluid.scope_guard(fluid.Scope()):
        exe.run(startup)
        epochs = itertools.chain.from_iterable(batches() for _ in itertools.count())
        for step, batch in enumerate(itertools.islice(epochs, steps)):
            (cost,) = exe.run(main, feed=feeder.feed(batch), fetch_list=[avg_cost])
            on_step(exe, step, float(cost[0]))
        fluid.io.save_inference_model(folder, list(FEATURES), [crf_decode], exe, main)
        feed = feeder.feed(list(TEST()))
        (tags,) = exe.run(test_program, feed=feed, fetch_list=[crf_decode], return_numpy=False)
    return np.array(tags)


def infer(place, folder):
    """Load the model; return its F1 over roles on the test part, and its tags."""
    samples = list(TEST())
    exe = fluid.Executor(place)
    with fluid.scope_guard(fluid.Scope()):
        program, feed_names, fetch_targets = fluid.io.load_inference_model(folder, exe)
        feeder = fluid.DataFeeder(feed_list=feed_names, place=place, program=program)
        feed = feeder.feed(sample[:-1] for sample in samples)
        (tags,) = exe.run(program, feed=feed, fetch_list=fetch_targets, return_numpy=False)

        metric_program = fluid.Program()
        with fluid.program_guard(metric_program):
            predicted, label = (
                fluid.layers.data(name=n, shape=[1], dtype="int64", lod_level=1) for n in ("predicted", "label")
            )
            counts = fluid.layers.chunk_eval(predicted, label, chunk_scheme="IOB", num_chunk_types=len(ROLES))[3:]
        labels = np.concatenate([sample[-1] for sample in samples]).reshape(-1, 1).astype("int64")
        labels = fluid.create_lod_tensor(labels, [[len(sample[-1]) for sample in samples]], place)
        evaluator = fluid.metrics.ChunkEvaluator()
        evaluator.update(*exe.run(metric_program, feed={"predicted": tags, "label": labels}, fetch_list=list(counts)))
    return float(evaluator.eval()[2]), np.array(tags)


if __name__ == "__main__":
    from fluidlite.cli.books import main

    main(__file__)
