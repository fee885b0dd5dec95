"""Search for an output sequence: greedy search, sampling and beam search (section 6.1).

This package knows no model, config or vocabulary, and imports only JAX and jaxtyping. You can copy
the folder into another project. The caller passes a step function with a cache, usually the keys
and values of a decoder, and the search tracks which cache entries belong to which hypothesis.
`loop` has the functions to call, `strategies` the choice of tokens.

The cache is written once per step and never reordered. At step `t` the hypothesis in slot `j`
writes its entry at `[t, j]`, and a hypothesis is a path through those slots. Its `ancestry` holds
its slot at every step:

    step       0    1    2    3
    slot 0    <s>  the  dog  ran      hypothesis 0: <s> the cat ran    ancestry 0 0 1 0
    slot 1     .    a   cat  sat      hypothesis 1: <s> the cat sat    ancestry 0 0 1 1

When hypotheses die and others split, the search reorders these few integers instead of the cache,
and the step function attends over all slots through a mask made from them. The step function closes
over the constants of a sentence, such as the keys and values of its source: there is one copy, not
one per hypothesis.

The sentences of a batch need not begin together. `admit` puts new ones into rows whose sentence has
ended, while the others continue. All write at the same index of a ring buffer: step number `clock`
writes at `clock % capacity`, and a sentence that began at `start` has its position 0 at `start %
capacity`. Rows are not cleared for a new sentence; the mask hides the entries of the previous one.

The result of a sentence does not depend on the other sentences of its batch. The functions trace
under `jax.jit`; all arguments other than arrays and keys are plain Python numbers.
"""
