"""Searches of CTranslate2."""

import json
import re
from pathlib import Path
from typing import Any

import ctranslate2

from tests.against.part import Case
from tests.against.search.part import Found


def _settings(case: Case, path: Path, pieces: list[str]) -> dict[str, Any]:
    if case["via"] == "export":
        line = re.search(r"translate_batch\(sources, (.*)\)", (path / "README.md").read_text())
        return dict(eval(f"dict({line[1]})"))
    return {
        "beam_size": case["beam_size"],
        "length_penalty": case["length_penalty"],
        "min_decoding_length": case["min_length"],
        "no_repeat_ngram_size": case["ngram"],
        "suppress_sequences": [[pieces[token]] for token in case["forbidden"]],
    }


def search(case: Case, folder: str) -> Found:
    """Search as the arguments, or the lines of the README, say."""
    path = Path(folder, "ctranslate2")
    pieces = json.loads((path / "shared_vocabulary.json").read_text())
    engine = ctranslate2.Translator(str(path), intra_threads=1, compute_type="float32")
    sources, prefixes = (
        [[pieces[token] for token in side] for side in sides]
        for sides in zip(*case["sentences"], strict=True)
    )
    done = engine.translate_batch(
        sources,
        target_prefix=prefixes if any(prefixes) else None,
        num_hypotheses=case["num_best"],
        patience=case["patience"],
        max_decoding_length=case["limit"],
        return_scores=True,
        return_end_token=True,
        **_settings(case, path, pieces),
    )
    found = []
    for one in done:
        rows = []
        for words, score in zip(one.hypotheses, one.scores, strict=True):
            tokens = [pieces.index(word) for word in words]
            rows.append((tokens, score, score * len(tokens) ** case["length_penalty"]))
        found.append(rows)
    Path(folder, "ctranslate2.json").write_text(json.dumps(found))
    return found
