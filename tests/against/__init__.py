"""Generated comparisons with other programs: `python -m tests.against --help`.

Each part generates cases from a seed. A case is a JSON object that says all: a tiny model, its
inputs and its settings. Each program computes a case in a process of its own, with limits of time
and memory. A case with a difference is shrunk to a smaller one that still differs, and printed with
the command that repeats it.

    search      beam search and greedy search of transformers and CTranslate2
    networks    the networks of the formats that are imported and exported
    training    training steps of PyTorch
    kernels     kernels against the plain formulas of `t2t_jax.functional`
"""
