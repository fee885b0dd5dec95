"""Serve translations in batches: a program with the HTTP layer of `t2t-jax serve`.

python -m servers.program batch-by-batch RUN ROWS LONGEST BEAM_SIZE WORKERS
python -m servers.program ctranslate2 RUN ROWS LONGEST BEAM_SIZE WORKERS MODEL_DIR
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from t2t_jax.config import DecodingConfig
from t2t_jax.system.program import run

if TYPE_CHECKING:
    from servers.batching import Toolkit


def main(arguments: Sequence[str]) -> int:
    """Serve until a signal comes, and return the exit code."""
    from servers.batching import Batching
    from t2t_jax.serving import server
    from t2t_jax.serving.access import Access
    from t2t_jax.serving.answers import Answers
    from t2t_jax.serving.app import Server
    from t2t_jax.serving.languages import Languages
    from t2t_jax.serving.metrics import ServerMetrics
    from t2t_jax.serving.service import ServedModel
    from t2t_jax.serving.settings import Bounds
    from t2t_jax.workdir import read_config

    kind, workdir, rows, longest, beam_size, workers, *model = arguments
    config, bounds = read_config(Path(workdir)), Bounds()
    shortened = min(int(longest), config.decoding.max_source_length)
    decoding = replace(
        config.decoding, beam_size=int(beam_size), max_source_length=shortened, quantize="none"
    )
    toolkit = _toolkit(kind, Path(workdir), decoding, int(workers), *map(Path, model))
    engine = Batching(toolkit, int(rows), bounds.max_waiting, int(workers))
    engine.warm_up()
    pair = config.data.source_language.lower(), config.data.target_language.lower()
    answers = Answers(Languages([ServedModel(*pair, engine, bounds)]), bounds, ServerMetrics())
    bound = server.bound_socket("127.0.0.1", 0)
    server.write_log()

    def ready() -> None:
        print(f"translates at http://127.0.0.1:{bound.getsockname()[1]}", flush=True)

    def load(model: ServedModel) -> Batching:
        del model
        return engine

    return server.run_server(lambda: Server(answers, Access(None, 0)), bound, bounds, load, ready)


def _toolkit(
    kind: str, workdir: Path, decoding: DecodingConfig, workers: int, *model: Path
) -> "Toolkit":
    from servers.toolkits import ClosedSearch, CTranslate2
    from t2t_jax.run.loading import load
    from t2t_jax.workdir import read_vocabulary

    if kind == "ctranslate2":
        return CTranslate2(*model, read_vocabulary(workdir), decoding, workers)
    return ClosedSearch(load(workdir), decoding)


if __name__ == "__main__":
    run(main)
