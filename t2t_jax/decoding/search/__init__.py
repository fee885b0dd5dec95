"""Search for output sequences by greedy search, sampling or beam search (section 6.1).

This package imports only JAX and jaxtyping, so you can copy it into another project. The caller
passes a step function with a cache, usually the keys and values of a decoder. `loop` has the
functions to call; `strategies` chooses tokens.

The search never reorders the cache. At step `t`, the hypothesis in slot `j` writes its cache entry
at `[t, j]`. The `ancestry` of a hypothesis holds its slot at every step:

    step       0    1    2    3
    slot 0    <s>  the  dog  ran      hypothesis 0: <s> the cat ran    ancestry 0 0 1 0
    slot 1     .    a   cat  sat      hypothesis 1: <s> the cat sat    ancestry 0 0 1 1

When hypotheses die or split, the search reorders only these integers. The step function attends
over all slots, with a mask computed from the ancestry. Constants of a sentence, such as the keys
and values of its source, exist once per sentence.

`admit` puts new sentences into free rows while other rows continue. All rows share the index of a
ring buffer: step number `clock` writes at `clock % capacity`. The mask hides entries that the
previous sentence of a row has written.

The result of a sentence does not depend on other sentences. The functions trace under `jax.jit`;
arguments other than arrays and keys are static.
"""
