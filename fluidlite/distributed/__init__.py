"""Data parallel training: groups of processes or places, and the pass that inserts collective operators.

``mpirun -n 4 python train.py`` starts four members; ``Network(..., distributed=True)`` and
``CompiledProgram(program).with_data_parallel(loss_name)`` let them train one model.
"""
