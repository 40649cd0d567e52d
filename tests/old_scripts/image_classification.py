from __future__ import print_function

import os
import sys

import numpy
import paddle
import paddle.fluid as fluid

BATCH_SIZE = 32
LABELS = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


def conv_bn_layer(input, ch_out, filter_size, stride, padding, act='relu', bias_attr=False):
    tmp = fluid.layers.conv2d(
        input=input,
        filter_size=filter_size,
        num_filters=ch_out,
        stride=stride,
        padding=padding,
        act=None,
        bias_attr=bias_attr)
    return fluid.layers.batch_norm(input=tmp, act=act)


def shortcut(input, ch_in, ch_out, stride):
    if ch_in != ch_out:
        return conv_bn_layer(input, ch_out, 1, stride, 0, None)
    else:
        return input


def basicblock(input, ch_in, ch_out, stride):
    tmp = conv_bn_layer(input, ch_out, 3, stride, 1)
    tmp = conv_bn_layer(tmp, ch_out, 3, 1, 1, act=None, bias_attr=True)
    short = shortcut(input, ch_in, ch_out, stride)
    return fluid.layers.elementwise_add(x=tmp, y=short, act='relu')


def layer_warp(block_func, input, ch_in, ch_out, count, stride):
    tmp = block_func(input, ch_in, ch_out, stride)
    for i in range(1, count):
        tmp = block_func(tmp, ch_out, ch_out, 1)
    return tmp


def resnet_cifar10(ipt, depth=8):
    # depth should be one of 8, 20, 32, 44, 56, 110, 1202
    assert (depth - 2) % 6 == 0
    n = (depth - 2) // 6
    conv1 = conv_bn_layer(ipt, ch_out=16, filter_size=3, stride=1, padding=1)
    res1 = layer_warp(basicblock, conv1, 16, 16, n, 1)
    res2 = layer_warp(basicblock, res1, 16, 32, n, 2)
    res3 = layer_warp(basicblock, res2, 32, 64, n, 2)
    pool = fluid.layers.pool2d(input=res3, pool_size=8, pool_type='avg', pool_stride=1)
    predict = fluid.layers.fc(input=pool, size=10, act='softmax')
    return predict


def vgg_bn_drop(input, width=8):
    def conv_block(ipt, num_filter, groups, dropouts):
        return fluid.nets.img_conv_group(
            input=ipt,
            pool_size=2,
            pool_stride=2,
            conv_num_filter=[num_filter] * groups,
            conv_filter_size=3,
            conv_act='relu',
            conv_with_batchnorm=True,
            conv_batchnorm_drop_rate=dropouts,
            pool_type='max')

    conv1 = conv_block(input, width, 2, [0.3, 0])
    conv2 = conv_block(conv1, 2 * width, 2, [0.4, 0])
    conv3 = conv_block(conv2, 4 * width, 3, [0.4, 0.4, 0])
    conv4 = conv_block(conv3, 8 * width, 3, [0.4, 0.4, 0])
    conv5 = conv_block(conv4, 8 * width, 3, [0.4, 0.4, 0])

    drop = fluid.layers.dropout(x=conv5, dropout_prob=0.5)
    fc1 = fluid.layers.fc(input=drop, size=8 * width, act=None)
    bn = fluid.layers.batch_norm(input=fc1, act='relu')
    drop2 = fluid.layers.dropout(x=bn, dropout_prob=0.5)
    fc2 = fluid.layers.fc(input=drop2, size=8 * width, act=None)
    predict = fluid.layers.fc(input=fc2, size=10, act='softmax')
    return predict


def inference_network(net_type):
    data_shape = [3, 32, 32]
    images = fluid.layers.data(name='pixel', shape=data_shape, dtype='float32')
    if net_type == 'resnet':
        predict = resnet_cifar10(images, 8)
    else:
        predict = vgg_bn_drop(images)
    return predict


def train_network(predict):
    label = fluid.layers.data(name='label', shape=[1], dtype='int64')
    cost = fluid.layers.cross_entropy(input=predict, label=label)
    avg_cost = fluid.layers.mean(cost)
    accuracy = fluid.layers.accuracy(input=predict, label=label)
    return [avg_cost, accuracy]


def optimizer_program():
    return fluid.optimizer.Adam(learning_rate=0.001)


def train(use_cuda, net_type, params_dirname, max_steps, num_epochs=1):
    train_reader = paddle.batch(
        paddle.reader.shuffle(paddle.dataset.cifar.train10(), buf_size=128 * 100), batch_size=BATCH_SIZE)
    test_reader = paddle.batch(paddle.dataset.cifar.test10(), batch_size=BATCH_SIZE)

    main_program = fluid.default_main_program()
    star_program = fluid.default_startup_program()
    main_program.random_seed = 90
    star_program.random_seed = 90

    predict = inference_network(net_type)
    avg_cost, acc = train_network(predict)
    test_program = main_program.clone(for_test=True)
    optimizer = optimizer_program()
    optimizer.minimize(avg_cost)

    place = fluid.CUDAPlace(0) if use_cuda else fluid.CPUPlace()
    exe = fluid.Executor(place)
    feed_order = ['pixel', 'label']

    def train_test(program, reader):
        count = 0
        feed_var_list = [program.global_block().var(var_name) for var_name in feed_order]
        feeder_test = fluid.DataFeeder(feed_list=feed_var_list, place=place)
        test_exe = fluid.Executor(place)
        accumulated = len([avg_cost, acc]) * [0]
        for tid, test_data in enumerate(reader()):
            avg_cost_np = test_exe.run(program=program, feed=feeder_test.feed(test_data), fetch_list=[avg_cost, acc])
            accumulated = [x[0] + x[1][0] for x in zip(accumulated, avg_cost_np)]
            count += 1
        return [x / count for x in accumulated]

    feed_var_list_loop = [main_program.global_block().var(var_name) for var_name in feed_order]
    feeder = fluid.DataFeeder(feed_list=feed_var_list_loop, place=place)
    exe.run(star_program)

    costs = []
    step = 0
    for pass_id in range(num_epochs):
        for step_id, data_train in enumerate(train_reader()):
            avg_loss_value = exe.run(main_program, feed=feeder.feed(data_train), fetch_list=[avg_cost, acc])
            costs.append(float(avg_loss_value[0]))
            if step_id % 10 == 0:
                print("\nPass %d, Batch %d, Cost %f, Acc %f" % (
                    step_id, pass_id, avg_loss_value[0], avg_loss_value[1]))
            else:
                sys.stdout.write('.')
                sys.stdout.flush()
            step += 1
            if step >= max_steps:
                break

        avg_cost_test, accuracy_test = train_test(test_program, reader=test_reader)
        print('\nTest with Pass {0}, Loss {1:2.2}, Acc {2:2.2}'.format(pass_id, avg_cost_test, accuracy_test))

        if params_dirname is not None:
            fluid.io.save_inference_model(params_dirname, ["pixel"], [predict], exe)
    return costs


def infer(use_cuda, params_dirname):
    place = fluid.CUDAPlace(0) if use_cuda else fluid.CPUPlace()
    exe = fluid.Executor(place)
    inference_scope = fluid.core.Scope()

    # The input's dimension of conv should be 4-D or 5-D.
    # Use inference_transpiler to speedup
    with fluid.scope_guard(inference_scope):
        [inference_program, feed_target_names, fetch_targets] = fluid.io.load_inference_model(params_dirname, exe)
        image, label = next(paddle.dataset.cifar.test10()())
        img = image.reshape(3, 32, 32)[numpy.newaxis, :]
        transpiler_program = inference_program.clone()
        t = fluid.transpiler.InferenceTranspiler()
        t.transpile(transpiler_program, place)

        results = exe.run(inference_program, feed={feed_target_names[0]: img}, fetch_list=fetch_targets)
        transpiler_results = exe.run(
            transpiler_program, feed={feed_target_names[0]: img}, fetch_list=fetch_targets)
        assert len(results[0]) == len(transpiler_results[0])
        for i in range(len(results[0])):
            numpy.testing.assert_almost_equal(results[0][i], transpiler_results[0][i], decimal=5)
        print("infer results: ", LABELS[numpy.argmax(results[0])])
        return results[0]


if __name__ == '__main__':
    save_path = os.path.join(sys.argv[2], "image_classification_%s.inference.model" % sys.argv[1])
    costs = train(False, sys.argv[1], save_path, int(sys.argv[3]))
    probabilities = infer(False, save_path)
