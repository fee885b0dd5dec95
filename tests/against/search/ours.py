"""Searches of this package, and the files of the same model for the other programs."""

import json
from dataclasses import replace
from functools import cache, partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from t2t_jax.batch import Batch, one_a_row, padded
from t2t_jax.data.vocabularies.learning import train_vocabulary
from t2t_jax.data.vocabulary import Vocabulary
from t2t_jax.decoding.row_group import Sentence
from t2t_jax.decoding.translator import Translator
from t2t_jax.extras.interchange.formats import read_model, write_model
from t2t_jax.extras.interchange.portable import PortableModel
from t2t_jax.modules.names import parameters_of
from tests.against.networks.ours import log_probs
from tests.against.part import OURS, Case
from tests.against.search import part
from tests.against.search.part import MOST_TOKENS, same
from tests.decoding.plain_search import END, PADDING, STARTS, Found, PlainSearch, Rules
from tests.extras.interchange.models import altered_json, portable, translator_of
from tests.tiny import tiny_sizes


@cache
def _vocabulary(size: int) -> Vocabulary:
    rng = np.random.default_rng(0)
    words = ["".join(rng.choice(list("abc"), rng.integers(1, 5))) for _ in range(480)]
    lines = [" ".join(words[start : start + 8]) for start in range(0, len(words), 8)]
    return train_vocabulary([(lines, lines)], size)


@cache
def _network(size: int, start: str) -> tuple[PortableModel, Translator]:
    """Return a network with any parameters, and its translator for the compiled programs."""
    fields = {**tiny_sizes(8, (1, 1)), "model.output_bias": True, "model.start_token": start}
    model = portable(fields, _vocabulary(size))
    return model, translator_of(model)


def _model(case: Case) -> PortableModel:
    """Return the model of a case, without its settings of the search."""
    model, _ = _network(case["size"], case["start"])
    scale, spread, end, special = part.DISTRIBUTIONS[case["distribution"]]
    rng, arrays = np.random.default_rng(case["seed"]), {}
    for name, like in model.arrays.items():
        deviation = {"embedding": scale, "output_bias": spread}.get(name, 0.25)
        arrays[name] = rng.normal(name.endswith("scale"), deviation, like.shape).astype(np.float32)
    arrays["output_bias"][END] += end
    arrays["output_bias"][[PADDING, STARTS["begin"], part.UNKNOWN]] += special
    return replace(model, arrays=arrays)


def _with_parameters(case: Case, model: PortableModel) -> Translator:
    """Return a translator, with the compiled programs of others of its network."""
    _, translator = _network(case["size"], case["start"])
    if model.config.model != translator.config.model:
        return translator_of(model)
    return translator.with_params(parameters_of(model.arrays, translator.params))


def _fields(case: Case) -> dict[str, Any]:
    """Return the settings of the search of a case."""
    names = "beam_size", "length_penalty", "min_length", "no_repeat_ngram_size"
    fields = {"forbidden_ids": tuple(case["forbidden"]), "max_extra_length": case["limit"]}
    fields |= {"beam_rule": "transformers", **{name: case[name] for name in names}}
    return {f"decoding.{name}": value for name, value in fields.items()}


def _write_settings(case: Case, path: Path) -> None:
    """Write the settings of a case to the files of transformers."""
    file, settings = path / "generation_config.json", part.settings_of_transformers(case)
    written = json.loads(file.read_text(encoding="utf-8"))
    settings |= {name: value for name, value in written.items() if name.endswith("token_id")}
    file.write_text(json.dumps(settings), encoding="utf-8")
    if case["in_config"]:
        file.unlink()
        altered_json(path / "config.json", **settings)


def search(case: Case, folder: str) -> Found:
    """Write the model for the other programs, and search."""
    model, path = _model(case), Path(folder, "marian")
    searched = replace(model, config=model.config.replace(_fields(case)))
    written = searched if case["via"] == "export" else model
    write_model(written, "marian", path)
    write_model(written, "ctranslate2", Path(folder, "ctranslate2"))
    if case["via"] == "import":
        _write_settings(case, path)
        searched = read_model("marian", path)
    decoding = searched.config.decoding
    limit = decoding.max_extra_length
    decoding = replace(decoding, max_extra_length=MOST_TOKENS)  # of all cases
    sentences = [Sentence([*source, END], limit, 0, prefix) for source, prefix in case["sentences"]]
    found: Found = [[] for _ in sentences]
    translator = _with_parameters(case, searched)
    # All hypotheses, as the number that is asked for would be compiled into the program.
    for index, best in translator.search(sentences, decoding, decoding.beam_size, 0):
        read = translator.read(best)[: case["num_best"]]
        found[index] = [(list(one.tokens), one.score, one.log_prob) for one in read]
    Path(folder, "ours.json").write_text(json.dumps(found))
    return found


def plain_search_of(case: Case) -> PlainSearch:
    """Return the searches of a case in plain Python, with the probabilities of this package."""
    translator = _with_parameters(case, _model(case))

    @cache
    def next_log_probs(source: tuple[int, ...], tokens: tuple[int, ...]) -> np.ndarray:
        sides = []
        for side in ((*source, END), (*tokens, END)):
            row = one_a_row(padded([side], 1, MOST_TOKENS))
            # Padding is a subword too, where a search has chosen it.
            sides.append(row._replace(segments=(row.positions < len(side)).astype(int)))
        found = log_probs(translator.model, translator.params, Batch(*sides))
        return np.asarray(found)[0, len(tokens)]

    return PlainSearch(case, lambda *sides: next_log_probs(*map(tuple, sides)))


def _explain(case: Case, folder: str, name: str) -> list[str]:
    """Return the fewest rules that make the search of this package that of another program."""
    ours, theirs = (json.loads(Path(folder, f"{one}.json").read_text()) for one in (OURS, name))
    if same(ours, theirs):
        return []
    own, others = Rules(**part.rules_of(case, OURS)), part.rules_of(case, name)
    plain = plain_search_of(case)
    is_own = same(ours, plain.found(own))
    different = [rule for rule in others if others[rule] != getattr(own, rule)]
    for count in range(1, len(different) + 1) if is_own else ():
        for chosen in combinations(different, count):
            rules = replace(own, **{rule: others[rule] for rule in chosen})
            if same(theirs, plain.found(rules)):
                return list(chosen)
    if plain.dead_end:  # neither -inf everywhere nor NaN has a best subword
        return ["dead_ends_live"]
    return ["near tie"] if plain.margin < part.TIE else ["no rule explains it"]


explain_transformers = partial(_explain, name="transformers")
explain_ctranslate2 = partial(_explain, name="ctranslate2")
