"""Searches of CTranslate2."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ctranslate2

from tests.against.part import Case
from tests.against.search.part import EMPTY
from tests.decoding.plain_search import Found, Hypothesis


def _settings(case: Case, path: Path, pieces: list[str]) -> dict[str, Any]:
    if case["via"] == "export":
        line = re.search(r"translate_batch\(sources, (.*)\)", (path / "README.md").read_text())
        assert line is not None
        return eval(f"dict({line[1]})")
    names = "beam_size", "length_penalty", "no_repeat_ngram_size"
    forbidden = [[pieces[token]] for token in case["forbidden"]]
    settings = {"min_decoding_length": case["min_length"], "suppress_sequences": forbidden}
    return settings | {name: case[name] for name in names}


def search(case: Case, folder: str) -> Found:
    """Search as the arguments, or the line of the README, say."""
    path = Path(folder, "ctranslate2")
    pieces = json.loads((path / "shared_vocabulary.json").read_text())
    sources, prefixes = zip(*case["sentences"], strict=True)
    spelt = [[[pieces[token] for token in row] for row in rows] for rows in (sources, prefixes)]
    done = ctranslate2.Translator(str(path), intra_threads=1).translate_batch(
        *(rows if any(rows) else None for rows in spelt),
        num_hypotheses=case["num_best"],
        patience=case["patience"],
        max_decoding_length=case["limit"],
        return_scores=True,
        return_end_token=True,
        **_settings(case, path, pieces),
    )
    found = [[*_hypotheses(case, pieces, row)] for row in done]
    Path(folder, "ctranslate2.json").write_text(json.dumps(found))
    return found


def _hypotheses(case: Case, pieces: list[str], row: Any) -> Iterator[Hypothesis]:
    for words, score in zip(row.hypotheses, row.scores, strict=True):
        tokens = [pieces.index(word) for word in words]
        log_prob = score * max(1, len(tokens)) ** case["length_penalty"]
        if log_prob > EMPTY:
            yield tokens, score, log_prob
