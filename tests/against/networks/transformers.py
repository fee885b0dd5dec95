"""Models of transformers: made at random, loaded from exports, and trained."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

from tests.against.networks import part
from tests.against.part import Case

_STEPS, _RATE = 10, 0.02


def make(case: Case, folder: str) -> np.ndarray:
    """Write a random model, and return its log-probabilities."""
    place, kind = Path(folder, "theirs"), case["format"].replace("m2m100", "m2m_100")
    model = _auto(case).from_config(AutoConfig.for_model(kind, **_fields(case)))
    rng = np.random.default_rng(case["seed"])
    with torch.no_grad():
        for name, array in model.state_dict(keep_vars=True).items():
            if array.requires_grad or name == "final_logits_bias":  # and not sinusoids
                array.copy_(torch.tensor(part.drawn(rng, name, tuple(array.shape))))
    model.to(getattr(torch, case["dtype"]))
    model.save_pretrained(place)
    _write_vocabulary(case, place)
    return exported(case, folder, "theirs")


def exported(case: Case, folder: str, name: str = "exported", model: Any = None) -> np.ndarray:
    """Return the log-probabilities of all entries, in the order of the side that begins.

    Args:
      name: the folder of the model.
      model: the model; None is for the one in the folder.
    """
    place = Path(folder, name)
    model = model or _auto(case).from_pretrained(place, dtype=torch.float32)
    with torch.no_grad():  # in float64, as roundings of two programs may add up
        logits, _ = _outputs(model.double(), case, place)
    return logits.log_softmax(-1)[:, _orders(case, place)[1]].numpy()


def trained(case: Case, folder: str) -> np.ndarray:
    """Train an export, write it, and return its log-probabilities."""
    place = Path(folder, "trained")
    shutil.copytree(Path(folder, "exported"), place, dirs_exist_ok=True)
    model = _auto(case).from_pretrained(place, dtype=torch.float32)
    optimizer = torch.optim.Adam(model.parameters(), _RATE)
    for step in range(_STEPS):
        outputs = _outputs(model, {**case, "seed": case["seed"] + step}, place)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(*outputs).backward()
        optimizer.step()
    model.save_pretrained(place)
    # Transformers 5.24 trains the sinusoids of Marian too, but does not save them.
    return exported(case, folder, "trained", None if case["format"] == "marian" else model)


def _auto(case: Case) -> Any:
    return AutoModelForCausalLM if case["format"] == "gpt2" else AutoModelForSeq2SeqLM


def _fields(case: Case) -> dict[str, Any]:
    """Return the fields of config.json of all formats; each has the aliases that it needs."""
    special = "bos_token_id", "pad_token_id", "eos_token_id"
    return {
        "hidden_size": case["num_heads"] * case["head_size"],
        "vocab_size": part.sizes(case)[0] + case["unused_rows"],
        "decoder_vocab_size": case["entries"],
        "share_encoder_decoder_embeddings": not case["source_entries"],
        "max_position_embeddings": 32,
        **dict(zip(special, case["special"], strict=False)),
        "forced_eos_token_id": None,
        "decoder_start_token_id": part.names(case)[1].index(case["start"]),
        "encoder_layers": case["num_encoder_layers"],
        **dict.fromkeys(("decoder_layers", "n_layer"), case["num_decoder_layers"]),
        **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim", "n_inner"), case["d_ff"]),
        **dict.fromkeys(("num_attention_heads", "decoder_attention_heads"), case["num_heads"]),
        **dict(case["options"]),
    }


def _write_vocabulary(case: Case, place: Path) -> None:
    """Write the files of a vocabulary, of which nothing is read but the ids."""
    tables = [{name: n for n, name in enumerate(own)} for own in part.names(case)]
    sides = zip(("src_lang", "tgt_lang"), part.LANGUAGES.get(case["format"], ()), strict=False)
    settings = dict(sides)
    files = {"tokenizer_config.json": settings, "vocab.json": tables[0]}
    files |= {"target_vocab.json": tables[1]} if case["source_entries"] else {}
    for file, content in files.items():
        (place / file).write_text(json.dumps(content), encoding="utf-8")
    for side in ("source", "target"):
        (place / f"{side}.spm").write_bytes(part.splitter(part.names(case)[0][:12]))
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(tables[1], part.UNKNOWN))
    tokenizer.add_special_tokens([part.BEGIN, part.PAD, part.END, part.UNKNOWN, *settings.values()])
    tokenizer.save(str(place / "tokenizer.json"))


def _orders(case: Case, place: Path) -> list[Any]:
    """Return the ids in the model at a place, by those of the side that begins."""
    if case["format"] != "marian":  # which is exported with other ids
        return [[*range(size)] for size in part.sizes(case)]
    files = sorted(place.glob("*vocab.json"), reverse=True)  # that of targets last, if there is one
    tables = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    both = zip((tables[0], tables[-1]), part.names(case), strict=True)
    return [[table[name] for name in own] for table, own in both]


def _outputs(model: Any, case: Case, place: Path) -> tuple[Any, Any]:
    """Return logits and targets."""
    sides = part.renamed(case, _orders(case, place))
    ids, wanted = (pad_sequence([torch.tensor(row) for row in side], True, -1) for side in sides)
    config, is_gpt2 = model.config, case["format"] == "gpt2"
    start = config.eos_token_id if is_gpt2 else config.decoder_start_token_id
    filler = config.pad_token_id or 0
    given = torch.nn.functional.pad(wanted, (1, -1), value=start)
    given, mask = given.where(given >= 0, filler), (ids >= 0).long()
    inputs = (given, None, wanted >= 0) if is_gpt2 else (ids.where(mask == 1, filler), mask, given)
    logits = model(*inputs, use_cache=False).logits
    return logits[wanted >= 0], wanted[wanted >= 0]
