"""Models of transformers: made at random, loaded from exports, and trained."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from tests.against.networks import part
from tests.against.part import Case, scratch

_CLASSES = {
    "marian": (transformers.MarianConfig, transformers.MarianMTModel),
    "m2m100": (transformers.M2M100Config, transformers.M2M100ForConditionalGeneration),
    "mbart": (transformers.MBartConfig, transformers.MBartForConditionalGeneration),
    "bart": (transformers.BartConfig, transformers.BartForConditionalGeneration),
    "gpt2": (transformers.GPT2Config, transformers.GPT2LMHeadModel),
}
_STEPS, _RATE = 10, 0.02


def make(case: Case, folder: str) -> np.ndarray:
    """Write a random model, and return its logits."""
    place = scratch(folder, "theirs")
    make_config, make_model = _CLASSES[case["format"]]
    torch.manual_seed(case["seed"])
    model = make_model(make_config(**_fields(case))).eval()
    rng = np.random.default_rng(case["seed"])
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                parameter.copy_(torch.tensor(part.drawn(rng, name, tuple(parameter.shape))))
        if hasattr(model, "final_logits_bias"):
            model.final_logits_bias.normal_()
    model.to(getattr(torch, case["dtype"]))
    if case["file"] == "bin":
        model.config.save_pretrained(place)
        model.generation_config.save_pretrained(place)
        torch.save(model.state_dict(), place / "pytorch_model.bin")
    else:
        model.save_pretrained(place, max_shard_size="4KB" if case["file"] == "shards" else "1GB")
    _write_vocabulary(case, place)
    return _logits(_loaded(case, place), case, place)


def exported(case: Case, folder: str) -> np.ndarray:
    """Return the logits of an export."""
    place = scratch(folder, "exported")
    return _logits(_loaded(case, place), case, place)


def trained(case: Case, folder: str) -> np.ndarray:
    """Train an export, write it, and return its logits."""
    place = scratch(folder, "exported")
    model = _loaded(case, place)
    for name, parameter in model.named_parameters():
        if case["format"] == "marian" and "embed_positions" in name:
            parameter.requires_grad_(False)  # sinusoids, which 5.24 trains but does not save
    optimizer = torch.optim.Adam(model.parameters(), _RATE)
    for step in range(_STEPS):
        outputs = _outputs(model, {**case, "seed": case["seed"] + step}, place)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(*outputs).backward()
        optimizer.step()
    shutil.copytree(place, scratch(folder) / "trained")
    (scratch(folder, "trained") / "model.safetensors").unlink()
    model.save_pretrained(scratch(folder, "trained"))
    return _logits(model, case, place)


def _loaded(case: Case, place: Path) -> Any:
    return _CLASSES[case["format"]][1].from_pretrained(place, dtype=torch.float32).eval()


def _fields(case: Case) -> dict[str, Any]:
    """Return the fields of config.json."""
    begin, pad, end, _ = case["special"]
    options = dict(case["options"])
    size = case["entries"] + case["unused_rows"]
    if case["format"] == "gpt2":
        sizes = {"n_embd": case["d_model"], "n_head": case["num_heads"], "n_inner": case["d_ff"]}
        sizes |= {"n_layer": case["decoder_layers"], "vocab_size": case["entries"]}
        return {"bos_token_id": end, "eos_token_id": end, "n_positions": 32, **sizes, **options}
    fields = {
        "d_model": case["d_model"],
        "vocab_size": size,
        "max_position_embeddings": 32,
        "bos_token_id": begin,
        "pad_token_id": pad,
        "eos_token_id": end,
        "forced_eos_token_id": None,
        "decoder_start_token_id": part.names(case)[1].index(case["start"]),
    }
    for stack in ("encoder", "decoder"):
        fields |= {f"{stack}_layers": case[f"{stack}_layers"], f"{stack}_ffn_dim": case["d_ff"]}
        fields[f"{stack}_attention_heads"] = case["num_heads"]
    if case["format"] == "marian":
        fields |= {"vocab_size": case["source_entries"] or case["entries"]}
        fields["decoder_vocab_size"] = case["entries"]
        fields["share_encoder_decoder_embeddings"] = not case["source_entries"]
    return fields | options


def _write_vocabulary(case: Case, place: Path) -> None:
    """Write the files of a vocabulary, of which nothing is read but the ids."""
    tables = [{name: n for n, name in enumerate(own)} for own in part.names(case)]
    languages = part.LANGUAGES.get(case["format"], ())
    settings = dict(zip(("src_lang", "tgt_lang"), languages, strict=False))
    files: dict[str, Any] = {"tokenizer_config.json": settings}
    if case["format"] == "marian":
        files |= {"vocab.json": tables[0]}
        files |= {"target_vocab.json": tables[1]} if case["source_entries"] else {}
        for side in ("source", "target"):
            (place / f"{side}.spm").write_bytes(part.splitter(part.names(case)[0][:12]))
    else:
        special = [part.BEGIN, part.PAD, part.END, part.UNKNOWN, *languages]
        flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        added = [
            {"id": tables[1][name], "content": name, "special": True, **flags} for name in special
        ]
        model = {"type": "WordLevel", "vocab": tables[1], "unk_token": part.UNKNOWN}
        files["tokenizer.json"] = {"version": "1.0", "added_tokens": added, "model": model}
    for file, content in files.items():
        (place / file).write_text(json.dumps(content), encoding="utf-8")


def _orders(case: Case, place: Path) -> list[Any]:
    """Return the ids in the model at a place, by those of the side that begins."""
    names = part.names(case)
    if case["format"] != "marian":  # which is exported with other ids
        return [[*range(len(own))] for own in names]
    second = place / "target_vocab.json"
    files = place / "vocab.json", second if second.exists() else place / "vocab.json"
    tables = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    return [[table[name] for name in own] for table, own in zip(tables, names, strict=True)]


def _outputs(model: Any, case: Case, place: Path) -> tuple[Any, Any]:
    """Return logits and targets."""
    sources, targets = part.renamed(case, _orders(case, place))
    config, is_gpt2 = model.config, case["format"] == "gpt2"
    start = config.eos_token_id if is_gpt2 else config.decoder_start_token_id
    filler = config.pad_token_id or 0
    given = torch.tensor(part.padded([[start, *row[:-1]] for row in targets], filler))
    wanted = torch.tensor(part.padded(targets, -1))
    if is_gpt2:
        logits = model(given).logits
    else:
        ids = torch.tensor(part.padded(sources, -1))
        mask = (ids >= 0).long()
        logits = model(ids.where(mask == 1, filler), mask, given, use_cache=False).logits
    return logits[wanted >= 0], wanted[wanted >= 0]


def _logits(model: Any, case: Case, place: Path) -> np.ndarray:
    """Return the log-probabilities of all entries, in the order of the side that begins."""
    with torch.no_grad():
        logits, _ = _outputs(model, case, place)
    found: np.ndarray = logits.log_softmax(-1)[:, _orders(case, place)[1]].numpy()
    return found
