"""Searches of this package, and the files of the same model for the other programs."""

import dataclasses
import json
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from t2t_jax.batch import BOS_ID, EOS_ID, PAD_ID, UNK_ID, Batch, one_a_row, padded
from t2t_jax.data.vocabularies.learning import train_vocabulary
from t2t_jax.data.vocabulary import Vocabulary
from t2t_jax.decoding.row_group import Sentence
from t2t_jax.decoding.translator import Translator
from t2t_jax.extras.interchange.formats import read_model, write_model
from t2t_jax.extras.interchange.portable import PortableModel
from t2t_jax.modules.names import parameters_of
from tests.against.part import Case, scratch
from tests.against.search.part import (
    DISTRIBUTIONS,
    MOST_TOKENS,
    NETWORK,
    Found,
    settings_of_transformers,
)
from tests.extras.interchange.models import portable, translator_of

_ROWS = 64
"""The number of scored outputs, so that cases share compiled programs."""


@cache
def _vocabulary(size: int) -> Vocabulary:
    rng = np.random.default_rng(0)
    words = ["".join(rng.choice(list("abc"), rng.integers(1, 5))) for _ in range(480)]
    lines = [" ".join(words[start : start + 8]) for start in range(0, len(words), 8)]
    return train_vocabulary([(lines, lines)], size)


@cache
def _network(size: int, width: int, layers: int, start: str) -> PortableModel:
    fields = {
        "model.d_model": width,
        "model.num_heads": 2,
        "model.d_ff": 2 * width,
        "model.num_encoder_layers": layers,
        "model.num_decoder_layers": layers,
        "model.output_bias": True,
        "model.start_token": start,
    }
    return portable(fields, _vocabulary(size))


@cache
def _translator(*network: Any) -> Translator:
    return translator_of(_network(*network))


def _model(case: Case) -> PortableModel:
    """Return the model of a case, without its settings of the search."""
    model = _network(*(case[name] for name in NETWORK))
    scale, spread, end, special = DISTRIBUTIONS[case["distribution"]]
    rng, arrays = np.random.default_rng(case["seed"]), {}
    for name, like in model.arrays.items():
        deviation = {"embedding": scale, "output_bias": spread}.get(name, 0.25)
        arrays[name] = rng.normal(name.endswith("scale"), deviation, like.shape).astype(np.float32)
    arrays["output_bias"][EOS_ID] += end
    arrays["output_bias"][[PAD_ID, BOS_ID, UNK_ID]] += special
    return dataclasses.replace(model, arrays=arrays)


def _with_parameters(case: Case, model: PortableModel) -> Translator:
    """Return a translator, with the compiled programs of others of its network."""
    translator = _translator(*(case[name] for name in NETWORK))
    if model.config.model != translator.config.model:
        return translator_of(model)
    return translator.with_params(parameters_of(model.arrays, translator.params))


def _fields(case: Case) -> dict[str, Any]:
    """Return the settings of the search of a case."""
    fields = {
        "beam_rule": "transformers",
        "beam_size": case["beam_size"],
        "length_penalty": case["length_penalty"],
        "max_extra_length": case["limit"],
        "min_length": case["min_length"],
        "no_repeat_ngram_size": case["ngram"],
        "forbidden_ids": tuple(case["forbidden"]),
    }
    return {f"decoding.{name}": value for name, value in fields.items()}


def search(case: Case, folder: str) -> Found:
    """Write the model for the other programs, and search."""
    model, path = _model(case), Path(folder, "marian")
    searched = dataclasses.replace(model, config=model.config.replace(_fields(case)))
    written = searched if case["via"] == "export" else model
    write_model(written, "marian", path)
    write_model(written, "ctranslate2", Path(folder, "ctranslate2"))
    if case["via"] == "import":
        file = path / "generation_config.json"
        kept = {k: v for k, v in json.loads(file.read_text()).items() if k.endswith("token_id")}
        file.write_text(json.dumps(kept | settings_of_transformers(case)))
        searched = read_model("marian", path)
    decoding = searched.config.decoding
    limit = decoding.max_extra_length
    decoding = dataclasses.replace(decoding, max_extra_length=MOST_TOKENS)  # of all cases
    sentences = [
        Sentence([*source, EOS_ID], limit, 0, prefix) for source, prefix in case["sentences"]
    ]
    found: Found = [[] for _ in sentences]
    translator = _with_parameters(case, searched)
    for index, best in translator.search(sentences, decoding, case["num_best"], 0):
        found[index] = [
            (list(one.tokens), one.score, one.log_prob) for one in translator.read(best)
        ]
    (scratch(folder) / "ours.json").write_text(json.dumps(found))
    return found


@partial(jax.jit, static_argnums=0)
def _losses(model: Any, params: Any, batch: Batch) -> Any:
    return model.losses(params, batch, 0.0)[1]


def _score(case: Case, folder: str, name: str) -> list[dict[str, list[float]]]:
    """Return the log-probabilities of the subwords of each hypothesis that was found."""
    found = [json.loads(Path(folder, f"{one}.json").read_text()) for one in ("ours", name)]
    rows = [
        ([*source, EOS_ID], tokens)
        for number, (source, _) in enumerate(case["sentences"])
        for program in found
        for tokens, _, _ in program[number]
    ]
    translator, sides = _with_parameters(case, _model(case)), []
    for side in zip(*rows, strict=True):
        tokens = one_a_row(padded(side, _ROWS, MOST_TOKENS))
        lengths = np.array([*map(len, side), *[0] * (_ROWS - len(side))])
        # Padding is a subword too, where a search has chosen it.
        sides.append(tokens._replace(segments=(tokens.positions < lengths[:, None]).astype(int)))
    losses = _losses(translator.model, translator.params, Batch(*sides))
    scored = iter(zip(rows, np.asarray(-losses).tolist(), strict=False))
    return [
        {
            str(tokens): values[: len(tokens)]
            for program in found
            for _, ((_, tokens), values) in zip(program[number], scored, strict=False)
        }
        for number in range(len(case["sentences"]))
    ]


score_transformers = partial(_score, name="transformers")
score_ctranslate2 = partial(_score, name="ctranslate2")
