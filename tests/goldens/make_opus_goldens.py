"""Write `opus/`: small random Marian models of transformers, and what transformers finds with them.

    python -m tests.goldens.make_opus_goldens

It needs `pip install torch transformers sentencepiece`; the tests read the files and need none of
them. The models have OPUS-MT's configuration but for their sizes: two SentencePiece models and a
table of ids, padding at its end, which starts targets too, swish, biases everywhere. One has a
vocabulary for both sides; the other has two vocabularies. `goldens.npz` in each directory has

    sources, targets                    lines of the bundled corpus, as ids of theirs, padded
    logits                              of every subword of the targets
    greedy, beam                        the tokens that a search finds, without length penalty
    averaged                            those of a beam with the penalty and the end of a search
                                        that transformers has by default
"""

import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece
import torch
from transformers import AutoTokenizer, MarianConfig, MarianMTModel

from t2t_jax.config import DataConfig
from t2t_jax.data.corpus import open_corpus

LINES, NUM_TOKENS, BEAMS, EXTRA_TOKENS = 6, 12, 4, 5
ROOT = Path(__file__).with_name("opus")


def splitter(lines: list[str], size: int) -> bytes:
    """A SentencePiece model as OPUS-MT's: unigrams, and no ids that the model needs."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, vocab_size=size, minloglevel=2,
        bos_id=-1, eos_id=0, unk_id=1, character_coverage=1.0, normalization_rule_name="identity",
    )  # fmt: skip
    return model.getvalue()


def table(models: list[bytes], pad: int | None = None) -> dict[str, int]:
    """An id for every subword of the SentencePiece models; of padding the last, or `pad`."""
    pieces = ["</s>", "<unk>"]
    for model in models:
        own = sentencepiece.SentencePieceProcessor(model_proto=model)
        pieces += [own.id_to_piece(number) for number in range(own.get_piece_size())]
    pieces = [*dict.fromkeys([*pieces, ">>deu<<"])]
    pieces.insert(len(pieces) if pad is None else pad, "<pad>")
    return {piece: number for number, piece in enumerate(pieces)}


def config(sizes: list[int], *, shared: bool) -> MarianConfig:
    """OPUS-MT's configuration, smaller."""
    pad = sizes[0] - 1
    return MarianConfig(
        vocab_size=sizes[0], decoder_vocab_size=sizes[-1], d_model=32, encoder_layers=2,
        decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
        encoder_ffn_dim=64, decoder_ffn_dim=64, activation_function="swish",
        scale_embedding=True, static_position_embeddings=True, pad_token_id=pad, eos_token_id=0,
        decoder_start_token_id=pad, forced_eos_token_id=None, bad_words_ids=[[pad]],
        share_encoder_decoder_embeddings=shared, max_position_embeddings=256, dropout=0.1,
        is_encoder_decoder=True,
    )  # fmt: skip


def with_random_numbers(model: MarianMTModel) -> MarianMTModel:
    """The model with numbers in all parameters that make its logits differ much."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed_positions" not in name:
                drawn = torch.randn(parameter.shape, generator=generator) * 0.25
                is_scale = name.endswith("layer_norm.weight")
                parameter.copy_(drawn + 1 if is_scale else drawn)
        bias = torch.randn(model.final_logits_bias.shape, generator=generator)
        model.final_logits_bias.copy_(bias)
        for stack in (model.model.encoder, model.model.decoder):
            stack.embed_tokens.weight[model.config.pad_token_id] = 0
    return model.eval()


def write(name: str, *, shared: bool) -> None:
    """Write a model and what is computed with it."""
    directory = ROOT / name
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    lines = open_corpus(DataConfig()).lines("dev")
    models = [splitter(list(side), size) for side, size in zip(lines, (300, 340), strict=True)]
    for side, model in zip(("source", "target"), models, strict=True):
        (directory / f"{side}.spm").write_bytes(model)
    tables = [table(models if shared else models[:1])]
    if not shared:  # transformers has one id of padding for both
        tables.append(table(models[1:], pad=tables[0]["<pad>"]))
    for file, own in zip(("vocab.json", "target_vocab.json"), tables, strict=False):
        _write_json(directory / file, own)
    sizes = [len(own) for own in tables]
    described: dict[str, Any] = {
        "tokenizer_class": "MarianTokenizer", "source_lang": "eng", "target_lang": "deu",
        "separate_vocabs": not shared,
    }  # fmt: skip
    _write_json(directory / "tokenizer_config.json", described)
    model = with_random_numbers(MarianMTModel(config(sizes, shared=shared)))
    model.save_pretrained(directory)
    _write_goldens(directory, model, [list(side)[:LINES] for side in lines])


def _write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def _padded(rows: list[list[int]], pad: int) -> np.ndarray:
    longest = max(map(len, rows))
    return np.array([[*row, *[pad] * (longest - len(row))] for row in rows])


def _write_goldens(directory: Path, model: MarianMTModel, lines: list[list[str]]) -> None:
    tokenizer = AutoTokenizer.from_pretrained(directory)
    sources = tokenizer(lines[0], return_tensors="pt", padding=True)
    targets = tokenizer(text_target=lines[1], return_tensors="pt", padding=True).input_ids
    pad = model.config.pad_token_id
    sources["input_ids"] = sources.input_ids.where(sources.attention_mask == 1, pad)
    targets = targets[:, :NUM_TOKENS].contiguous()
    with torch.no_grad():
        logits = model(**sources, labels=targets).logits
    common = {
        "do_sample": False, "bad_words_ids": [[pad]], "length_penalty": 0.0,
        "early_stopping": "never", "forced_eos_token_id": None,
    }  # fmt: skip
    usual = {**common, "length_penalty": 1.0, "early_stopping": False}
    searches = {"greedy": (1, common), "beam": (BEAMS, common), "averaged": (BEAMS, usual)}
    found: dict[str, list[list[int]]] = {name: [] for name in searches}
    for row, own in zip(sources.input_ids, sources.attention_mask, strict=True):
        ids = row[own == 1][None]
        for name, (beams, how) in searches.items():
            most = ids.shape[1] + EXTRA_TOKENS
            best = model.generate(ids, num_beams=beams, max_new_tokens=most, **how)
            found[name].append(best[0, 1:].tolist())
    np.savez_compressed(
        directory / "goldens.npz",
        sources=sources.input_ids.numpy(), targets=targets.numpy(), logits=logits.numpy(),
        **{name: _padded(rows, pad) for name, rows in found.items()},
    )  # fmt: skip


if __name__ == "__main__":
    write("shared", shared=True)
    write("separate", shared=False)
