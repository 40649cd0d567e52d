from __future__ import print_function

import math
import sys

import numpy
import paddle
import paddle.fluid as fluid

EMBED_SIZE = 32
HIDDEN_SIZE = 64
N = 5
BATCH_SIZE = 100

word_dict = paddle.dataset.imikolov.build_dict(20)
dict_size = len(word_dict)


def inference_program(words, is_sparse):
    embed_first = fluid.layers.embedding(
        input=words[0], size=[dict_size, EMBED_SIZE], dtype='float32', is_sparse=is_sparse, param_attr='shared_w')
    embed_second = fluid.layers.embedding(
        input=words[1], size=[dict_size, EMBED_SIZE], dtype='float32', is_sparse=is_sparse, param_attr='shared_w')
    embed_third = fluid.layers.embedding(
        input=words[2], size=[dict_size, EMBED_SIZE], dtype='float32', is_sparse=is_sparse, param_attr='shared_w')
    embed_fourth = fluid.layers.embedding(
        input=words[3], size=[dict_size, EMBED_SIZE], dtype='float32', is_sparse=is_sparse, param_attr='shared_w')
    concat_embed = fluid.layers.concat(input=[embed_first, embed_second, embed_third, embed_fourth], axis=1)
    hidden1 = fluid.layers.fc(input=concat_embed, size=HIDDEN_SIZE, act='sigmoid')
    predict_word = fluid.layers.fc(input=hidden1, size=dict_size, act='softmax')
    return predict_word


def train_program(predict_word):
    next_word = fluid.layers.data(name='nextw', shape=[1], dtype='int64')
    cost = fluid.layers.cross_entropy(input=predict_word, label=next_word)
    avg_cost = fluid.layers.mean(cost)
    return avg_cost


def optimizer_func():
    return fluid.optimizer.AdagradOptimizer(
        learning_rate=3e-2, regularization=fluid.regularizer.L2DecayRegularizer(8e-4))


def train(use_cuda, params_dirname, is_sparse, max_steps):
    place = fluid.CUDAPlace(0) if use_cuda else fluid.CPUPlace()
    train_reader = paddle.batch(paddle.dataset.imikolov.train(word_dict, N), BATCH_SIZE)
    first_word = fluid.layers.data(name='firstw', shape=[1], dtype='int64')
    second_word = fluid.layers.data(name='secondw', shape=[1], dtype='int64')
    third_word = fluid.layers.data(name='thirdw', shape=[1], dtype='int64')
    forth_word = fluid.layers.data(name='fourthw', shape=[1], dtype='int64')
    next_word = fluid.layers.data(name='nextw', shape=[1], dtype='int64')
    word_list = [first_word, second_word, third_word, forth_word, next_word]
    feed_order = ['firstw', 'secondw', 'thirdw', 'fourthw', 'nextw']

    main_program = fluid.default_main_program()
    star_program = fluid.default_startup_program()
    predict_word = inference_program(word_list, is_sparse)
    avg_cost = train_program(predict_word)
    sgd_optimizer = optimizer_func()
    sgd_optimizer.minimize(avg_cost)

    exe = fluid.Executor(place)
    step = 0
    feed_var_list_loop = [main_program.global_block().var(var_name) for var_name in feed_order]
    feeder = fluid.DataFeeder(feed_list=feed_var_list_loop, place=place)
    exe.run(star_program)
    costs = []
    for data in train_reader():
        avg_cost_np = exe.run(main_program, feed=feeder.feed(data), fetch_list=[avg_cost])
        costs.append(float(avg_cost_np[0][0]))
        if step % 50 == 0:
            print("Step %d: Average Cost %f" % (step, avg_cost_np[0][0]))
        step += 1
        if math.isnan(float(avg_cost_np[0][0])):
            sys.exit("got NaN loss, training failed.")
        if step >= max_steps:
            break
    fluid.io.save_inference_model(params_dirname, ['firstw', 'secondw', 'thirdw', 'fourthw'], [predict_word], exe)
    return costs


def infer(use_cuda, params_dirname):
    place = fluid.CUDAPlace(0) if use_cuda else fluid.CPUPlace()
    exe = fluid.Executor(place)
    inference_scope = fluid.core.Scope()
    with fluid.scope_guard(inference_scope):
        [inferencer, feed_target_names, fetch_targets] = fluid.io.load_inference_model(params_dirname, exe)
        data = [[[word_dict[word]]] for word in ('the', 'value', 'of', 'the')]
        lod = [[1]]
        words = [fluid.create_lod_tensor(each, lod, place) for each in data]
        results = exe.run(
            inferencer,
            feed=dict(zip(feed_target_names, words)),
            fetch_list=fetch_targets,
            return_numpy=False)
        print(numpy.array(results[0]))
        most_possible_word_index = numpy.argmax(results[0])
        print([key for key, value in word_dict.items() if value == most_possible_word_index][0])


if __name__ == '__main__':
    costs = train(False, sys.argv[1], True, int(sys.argv[2]))
    infer(False, sys.argv[1])
