from __future__ import print_function

import sys

import numpy as np
import paddle
import paddle.fluid as fluid

CLASS_DIM = 2
EMB_DIM = 32
HID_DIM = 32
STACKED_NUM = 3
BATCH_SIZE = 64


def stacked_lstm_net(data, input_dim, class_dim, emb_dim, hid_dim, stacked_num):
    assert stacked_num % 2 == 1
    emb = fluid.layers.embedding(input=data, size=[input_dim, emb_dim], is_sparse=True)
    fc1 = fluid.layers.fc(input=emb, size=hid_dim)
    lstm1, cell1 = fluid.layers.dynamic_lstm(input=fc1, size=hid_dim)
    inputs = [fc1, lstm1]
    for i in range(2, stacked_num + 1):
        fc = fluid.layers.fc(input=inputs, size=hid_dim)
        lstm, cell = fluid.layers.dynamic_lstm(input=fc, size=hid_dim, is_reverse=(i % 2) == 0)
        inputs = [fc, lstm]
    fc_last = fluid.layers.sequence_pool(input=inputs[0], pool_type='max')
    lstm_last = fluid.layers.sequence_pool(input=inputs[1], pool_type='max')
    prediction = fluid.layers.fc(input=[fc_last, lstm_last], size=class_dim, act='softmax')
    return prediction


def inference_program(word_dict):
    data = fluid.layers.data(name="words", shape=[1], dtype="int64", lod_level=1)
    dict_dim = len(word_dict)
    net = stacked_lstm_net(data, dict_dim, CLASS_DIM, EMB_DIM, HID_DIM, STACKED_NUM)
    return net


def train_program(prediction):
    label = fluid.layers.data(name="label", shape=[1], dtype="int64")
    cost = fluid.layers.cross_entropy(input=prediction, label=label)
    avg_cost = fluid.layers.mean(cost)
    accuracy = fluid.layers.accuracy(input=prediction, label=label)
    return [avg_cost, accuracy]


def optimizer_func():
    return fluid.optimizer.Adagrad(learning_rate=0.05)


def train(use_cuda, params_dirname, max_steps):
    place = fluid.CUDAPlace(0) if use_cuda else fluid.CPUPlace()
    print("Loading IMDB word dict....")
    word_dict = paddle.dataset.imdb.word_dict()

    print("Reading training data....")
    train_reader = paddle.batch(
        paddle.reader.shuffle(paddle.dataset.imdb.train(word_dict), buf_size=25000), batch_size=BATCH_SIZE)

    feed_order = ['words', 'label']
    pass_num = 100

    main_program = fluid.default_main_program()
    star_program = fluid.default_startup_program()
    prediction = inference_program(word_dict)
    train_func_outputs = train_program(prediction)
    avg_cost = train_func_outputs[0]
    test_program = main_program.clone(for_test=True)
    sgd_optimizer = optimizer_func()
    sgd_optimizer.minimize(avg_cost)
    exe = fluid.Executor(place)

    def train_test(program, reader):
        count = 0
        feed_var_list = [program.global_block().var(var_name) for var_name in feed_order]
        feeder_test = fluid.DataFeeder(feed_list=feed_var_list, place=place)
        test_exe = fluid.Executor(place)
        accumulated = len([avg_cost, accuracy]) * [0]
        for test_data in reader():
            avg_cost_np = test_exe.run(
                program=program, feed=feeder_test.feed(test_data), fetch_list=[avg_cost, accuracy])
            accumulated = [x[0] + x[1][0] for x in zip(accumulated, avg_cost_np)]
            count += 1
        return [x / count for x in accumulated]

    accuracy = train_func_outputs[1]
    feed_var_list_loop = [main_program.global_block().var(var_name) for var_name in feed_order]
    feeder = fluid.DataFeeder(feed_list=feed_var_list_loop, place=place)
    exe.run(star_program)
    step = 0
    for epoch_id in range(pass_num):
        for step_id, data in enumerate(train_reader()):
            metrics = exe.run(
                main_program, feed=feeder.feed(data), fetch_list=[var.name for var in train_func_outputs])
            print("step: {0}, Metrics {1}".format(step_id, list(map(np.array, metrics))))
            step += 1
            if step == max_steps:
                test_reader = paddle.batch(paddle.dataset.imdb.test(word_dict), batch_size=BATCH_SIZE)
                tested = train_test(test_program, test_reader)
                fluid.io.save_inference_model(params_dirname, ["words"], prediction, exe)
                return tested


def infer(use_cuda, params_dirname=None):
    place = fluid.CUDAPlace(0) if use_cuda else fluid.CPUPlace()
    word_dict = paddle.dataset.imdb.word_dict()
    exe = fluid.Executor(place)
    inference_scope = fluid.core.Scope()
    with fluid.scope_guard(inference_scope):
        [inferencer, feed_target_names, fetch_targets] = fluid.io.load_inference_model(params_dirname, exe)
        assert feed_target_names[0] == "words"
        reviews_str = ['the story was great and the music was lovely', 'a dull film with a poor boring plot', 'it was bad']
        reviews = [c.split() for c in reviews_str]
        UNK = word_dict['<unk>']
        lod = []
        for c in reviews:
            lod.append([np.int64(word_dict.get(words.encode('utf-8'), word_dict.get(words, UNK))) for words in c])
        base_shape = [[len(c) for c in lod]]
        lod = np.array(sum(lod, []), dtype=np.int64)
        tensor_words = fluid.create_lod_tensor(lod.reshape(-1, 1), base_shape, place)
        results = exe.run(inferencer, feed={feed_target_names[0]: tensor_words}, fetch_list=fetch_targets,
                          return_numpy=False)
        np_data = np.array(results[0])
        for i, r in enumerate(np_data):
            print("Predict probability of ", r[0], " to be positive and ", r[1], " to be negative for review \'",
                  reviews_str[i], "\'")
        return np_data


if __name__ == '__main__':
    cost, accuracy = train(False, sys.argv[1], int(sys.argv[2]))
    probabilities = infer(False, sys.argv[1])
