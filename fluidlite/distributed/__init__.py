"""Data parallel training: groups of processes or places, collective operators, and what puts them into programs.

``mpirun -n 4 python train.py`` starts four members; ``Network(..., distributed=True)`` and
``CompiledProgram(program).with_data_parallel(loss_name)`` let them train one model.
"""
