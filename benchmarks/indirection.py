"""Count the functions of the package that a forward pass enters, and the files that hold them.

    python benchmarks/indirection.py

The fewer there are, the less a reader has to follow from a network to the equations of the paper.
The pass is `build(Config(), 100).apply(params, batch, method="losses", label_smoothing=0.1)`, which
is traced and not run: that enters the same functions. Methods, lambdas and functions within
functions count once each, however often they are called. Comprehensions and the methods that
`dataclass` writes do not count. The second pass is counted: the first also loads named functions.
"""

import cProfile
from collections import Counter
from functools import partial
from pathlib import Path

import jax

import t2t_jax
from t2t_jax.config import Config

_PACKAGE = Path(t2t_jax.__file__).parent
_COMPREHENSIONS = "<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>"


def main() -> None:
    """Print the number of functions of each file."""
    functions = functions_per_file()
    for file, count in sorted(functions.items()):
        print(f"{file:<32}{count:>4}")
    print(f"{functions.total()} functions in {len(functions)} files")


def functions_per_file() -> Counter[str]:
    """Return the number of functions that a forward pass enters, by file of the package."""
    network = t2t_jax.build(Config(), 100)
    batch = t2t_jax.Batch.of([[5, 6, 7, 1]], [[8, 9, 1]])
    # The first pass also loads what configs name, and fills caches.
    params = jax.eval_shape(lambda key: network.init(key, batch), jax.random.key(0))
    losses = partial(network.apply, batch=batch, label_smoothing=0.1, method="losses")
    with cProfile.Profile(builtins=False) as profile:
        jax.eval_shape(losses, params)
    functions = {entry.code for entry in profile.getstats()}
    paths = [Path(x.co_filename) for x in functions if x.co_name not in _COMPREHENSIONS]
    return Counter(x.relative_to(_PACKAGE).as_posix() for x in paths if _PACKAGE in x.parents)


if __name__ == "__main__":
    main()
