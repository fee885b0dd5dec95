"""The folder of the search can be lifted out: it needs JAX and jaxtyping, and nothing else."""

import ast
import shutil
import sys
from pathlib import Path

from t2t_jax.decoding import search
from tests.programs import run_python

# A toy step function, whose logits depend only on the last token. Greedy search takes c, which is
# more probable than a: c$ has probability 0.6 * 0.5. The most probable sequence is ab$, with
# 0.4 * 0.9 * 1.0; all others have less than 0.6 * 0.3.
_PROGRAM = """
import sys

sys.path.insert(0, sys.argv[1])

import jax.numpy as jnp
from search.loop import advance, begin, results
from search.strategies import BeamSearch, Greedy

EOS, A, B, C, BOS = range(5)
probabilities = jnp.zeros((5, 5))
probabilities = probabilities.at[BOS, jnp.array([A, C])].set(jnp.array([0.4, 0.6]))
probabilities = probabilities.at[A, jnp.array([EOS, B])].set(jnp.array([0.1, 0.9]))
probabilities = probabilities.at[C, jnp.array([EOS, A, C])].set(jnp.array([0.5, 0.2, 0.3]))
logits = jnp.log(probabilities.at[B, EOS].set(1.0))

for strategy in Greedy(EOS), BeamSearch(EOS, beam_size=3, alpha=0.0, num_best=1):
    sizes = {"beam_size": strategy.beam_size, "capacity": 4, "bos_id": BOS}
    ended = advance(
        strategy,
        lambda tokens, positions, clock, ancestry_mask, cache: (logits[tokens], cache),
        begin((), jnp.array([4, 4]), **sizes),
    )
    found = results(strategy, ended)
    for tokens, log_prob, length in zip(found.tokens, found.log_probs, found.lengths):
        text = "".join("$abc"[token] for token in tokens[0, : length[0]])
        print(text, round(float(jnp.exp(log_prob[0])), 4))
assert "t2t_jax" not in sys.modules
"""


def test_a_copy_of_the_folder_searches_without_the_package(tmp_path):
    shutil.copytree(*search.__path__, tmp_path / "search")
    done = run_python("-I", "-c", _PROGRAM, tmp_path, code=0, cwd=tmp_path)
    assert done.stdout == "c$ 0.3\n" * 2 + "ab$ 0.36\n" * 2


def test_the_folder_imports_only_jax_and_jaxtyping():
    trees = [ast.parse(path.read_text("utf-8")) for path in Path(*search.__path__).glob("*.py")]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    modules = [one.name for node in nodes if isinstance(node, ast.Import) for one in node.names]
    absolute = [node for node in nodes if isinstance(node, ast.ImportFrom) and not node.level]
    roots = {name.split(".")[0] for name in [*modules, *(node.module for node in absolute)]}
    assert roots - sys.stdlib_module_names == {"jax", "jaxtyping"}
