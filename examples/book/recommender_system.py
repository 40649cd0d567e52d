"""Recommend films: the fifth chapter. The features of a user and of a film give a vector each; their cosine, scaled,
is the rating.

A film's categories and title are sequences: the vectors of the categories are summed, the title goes through a
convolution over its words. The ratings are generated, since no package has any: users and films have hidden
tastes, which depend on age, gender, job, categories and the words of titles.

python examples/book/recommender_system.py [place]
"""

from __future__ import annotations

import itertools
import random

import numpy as np

import fluidlite as fluid

DATA = "8,000 ratings of 200 films by 200 users (generated)"
METRIC, GOAL, BETTER = "root mean squared error of test ratings", 0.8, "lower"
STEPS = 200
BATCH_SIZE = 128
USERS, AGES, JOBS, FILMS, CATEGORIES, TITLE_WORDS, TASTES = 200, 7, 21, 200, 18, 300, 4
RATINGS = 8000


def ratings():
    """Rows of user, gender, age, job, film, categories, title and rating; a rating is a number from 1 to 5."""
    rng = np.random.RandomState(0)
    gender, age, job = (rng.randint(count, size=USERS) for count in (2, AGES, JOBS))
    of_gender, of_age, of_job = (rng.normal(size=(count, TASTES)) for count in (2, AGES, JOBS))
    of_category, of_word = (rng.normal(size=(count, TASTES)) for count in (CATEGORIES, TITLE_WORDS))
    categories = [sorted(rng.choice(CATEGORIES, rng.randint(1, 4), replace=False).tolist()) for _ in range(FILMS)]
    titles = [rng.randint(TITLE_WORDS, size=rng.randint(1, 6)).tolist() for _ in range(FILMS)]
    user = of_gender[gender] + of_age[age] + of_job[job] + 0.5 * rng.normal(size=(USERS, TASTES))
    film = np.stack([of_category[c].sum(0) + of_word[t].mean(0) for c, t in zip(categories, titles, strict=True)])
    user, film = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (user, film))
    for _ in range(RATINGS):
        u, f = rng.randint(USERS), rng.randint(FILMS)
        score = np.clip(np.rint(3 + 2.5 * user[u] @ film[f] + rng.normal(0, 0.3)), 1, 5)
        yield u, gender[u], age[u], job[u], f, categories[f], titles[f], np.float32([score])


def reader(test: bool):
    """Return a reader of ratings; every tenth is for tests."""

    def samples():
        yield from (row for number, row in enumerate(ratings()) if (number % 10 == 0) == test)

    return samples


TRAIN, TEST = reader(test=False), reader(test=True)


def embedded(name, size, width, lod_level=0):
    """Return data of indices below ``size``, and their embedding vectors."""
    data = fluid.layers.data(name=name, shape=[1], dtype="int64", lod_level=lod_level)
    return data, fluid.layers.embedding(input=data, dtype="float32", size=[size, width])


def get_usr_combined_features():
    """Four features of a user, an embedding and a layer each, and a layer of all."""
    sizes = {"user_id": (USERS, 32), "gender_id": (2, 16), "age_id": (AGES, 16), "job_id": (JOBS, 16)}
    layers, data = [], []
    for name, (size, width) in sizes.items():
        var, emb = embedded(name, size, width)
        data.append(var)
        layers.append(fluid.layers.fc(input=emb, size=width))
    return data, fluid.layers.fc(input=fluid.layers.concat(input=layers, axis=1), size=64, act="tanh")


def get_mov_combined_features():
    """A film's number, its categories, summed, and its title, convolved."""
    mov_id, mov_emb = embedded("movie_id", FILMS, 32)
    mov_fc = fluid.layers.fc(input=mov_emb, size=32)
    category_id, category_emb = embedded("category_id", CATEGORIES, 32, lod_level=1)
    mov_categories_hidden = fluid.layers.sequence_pool(input=category_emb, pool_type="sum")
    title_id, title_emb = embedded("movie_title", TITLE_WORDS, 32, lod_level=1)
    mov_title_conv = fluid.nets.sequence_conv_pool(
        input=title_emb, num_filters=32, filter_size=3, act="tanh", pool_type="sum"
    )
    concat_embed = fluid.layers.concat(input=[mov_fc, mov_categories_hidden, mov_title_conv], axis=1)
    return [mov_id, category_id, title_id], fluid.layers.fc(input=concat_embed, size=64, act="tanh")


def train(place, folder, steps=STEPS, on_step=lambda exe, step, loss: None):
    """Train, save the model, and return its predictions for the test part."""
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 1
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        usr_data, usr_combined_features = get_usr_combined_features()
        mov_data, mov_combined_features = get_mov_combined_features()
        inference = fluid.layers.cos_sim(X=usr_combined_features, Y=mov_combined_features)
        scale_infer = fluid.layers.scale(x=inference, scale=5.0)
        label = fluid.layers.data(name="score", shape=[1], dtype="float32")
        avg_cost = fluid.layers.mean(fluid.layers.square_error_cost(input=scale_infer, label=label))
        test_program = main.clone(for_test=True)
        fluid.optimizer.Adam(learning_rate=0.01).minimize(avg_cost)

    random.seed(0)
    batches = fluid.batch(fluid.reader.shuffle(TRAIN, buf_size=8192), batch_size=BATCH_SIZE, drop_last=True)
    feeder = fluid.DataFeeder(feed_list=[*usr_data, *mov_data, label], place=place)
    exe = fluid.Executor(place)
    with fluid.scope_guard(fluid.Scope()):
        exe.run(startup)
        epochs = itertools.chain.from_iterable(batches() for _ in itertools.count())
        for step, batch in enumerate(itertools.islice(epochs, steps)):
            (cost,) = exe.run(main, feed=feeder.feed(batch), fetch_list=[avg_cost])
            on_step(exe, step, float(cost[0]))
        names = [data.name for data in (*usr_data, *mov_data)]
        fluid.io.save_inference_model(folder, names, [scale_infer], exe, main)
        (predicted,) = exe.run(test_program, feed=feeder.feed(list(TEST())), fetch_list=[scale_infer])
    return predicted


def infer(place, folder):
    """Load the model; return its error on the test part, and its predictions."""
    samples = list(TEST())
    exe = fluid.Executor(place)
    with fluid.scope_guard(fluid.Scope()):
        program, feed_names, fetch_targets = fluid.io.load_inference_model(folder, exe)
        feeder = fluid.DataFeeder(feed_list=feed_names, place=place, program=program)
        (predicted,) = exe.run(program, feed=feeder.feed(row[:-1] for row in samples), fetch_list=fetch_targets)
    scores = np.stack([row[-1] for row in samples])
    return float(np.sqrt(np.mean((predicted - scores) ** 2))), predicted


if __name__ == "__main__":
    from fluidlite.cli.books import main

    main(__file__)
