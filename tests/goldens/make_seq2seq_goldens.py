"""Write `seq2seq/`: small random encoder-decoders, and what transformers finds with them.

    python -m tests.goldens.make_seq2seq_goldens [KIND ...]

It needs `pip install torch transformers sentencepiece tokenizers`; the tests read the files and
need neither torch nor transformers. The models have the configuration of the published ones but for
their sizes, and random weights. Each directory has what `save_pretrained` writes, and in
`goldens.npz`

    sources, targets                    lines of the bundled corpus, as ids of theirs, padded
    decoder_inputs                      what the decoder reads to predict the targets
    logits                              of every subword of the targets
    greedy, beam                        the tokens after the start that a search finds
    other                               those of a greedy search for another target language
"""

import gzip
import io
import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

LINES, NUM_TOKENS, BEAMS, EXTRA_TOKENS = 4, 8, 4, 5
ROOT = Path(__file__).with_name("seq2seq")
BUNDLED = Path(__file__).parents[2] / "t2t_jax" / "data" / "bundled"
SIZES: dict[str, Any] = {
    "d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32,
}  # fmt: skip


def lines(language: str) -> list[str]:
    """The lines of the bundled dev split."""
    with gzip.open(BUNDLED / f"dev.{language}.gz", "rt", encoding="utf-8") as file:
        return [line.rstrip("\n") for line in file]


def splitter(
    kind: str, directory: Path, name: str = "sentencepiece.bpe.model", **special: int
) -> None:
    """Write a SentencePiece model, whose special ids are those of BART unless given."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([*lines("en"), *lines("de")]), model_writer=model, vocab_size=260,
        minloglevel=2, model_type=kind, character_coverage=1.0,
        normalization_rule_name="identity", **special,
    )  # fmt: skip
    (directory / name).write_bytes(model.getvalue())


def m2m100(directory: Path) -> tuple[Any, Any]:
    """M2M100: a table of ids in an order of its own, a hundred languages, and unused rows."""
    splitter("bpe", directory)
    own = sentencepiece.SentencePieceProcessor(
        model_file=str(directory / "sentencepiece.bpe.model")
    )
    pieces = [own.id_to_piece(number) for number in range(3, own.get_piece_size())]
    table = ["<s>", "<pad>", "</s>", "<unk>", *sorted(pieces[:-1])]  # one is not in the table
    transformers.models.m2m_100.tokenization_m2m_100.save_json(
        {piece: number for number, piece in enumerate(table)}, directory / "vocab.json"
    )
    names = str(directory / "vocab.json"), str(directory / "sentencepiece.bpe.model")
    tokenizer = transformers.M2M100Tokenizer(*names, src_lang="en", tgt_lang="de")
    config = transformers.M2M100Config(vocab_size=len(table) + 108, **SIZES)
    return tokenizer, transformers.M2M100ForConditionalGeneration(config)


def nllb(directory: Path) -> tuple[Any, Any]:
    """NLLB: a tokenizer of the library tokenizers, and rows without an entry."""
    splitter("bpe", directory)
    marks = ["deu_Latn", "eng_Latn", "fra_Latn"]
    tokenizer = transformers.NllbTokenizer.from_pretrained(
        directory, extra_special_tokens=marks, src_lang="eng_Latn", tgt_lang="deu_Latn"
    )
    (directory / "sentencepiece.bpe.model").unlink()  # tokenizer.json says the same
    config = transformers.M2M100Config(vocab_size=len(tokenizer) + 2, **SIZES)
    return tokenizer, transformers.M2M100ForConditionalGeneration(config)


def mbart50(directory: Path) -> tuple[Any, Any]:
    """mBART-50: sources begin with the mark of their language, and so do targets."""
    splitter("unigram", directory)
    tokenizer = transformers.MBart50Tokenizer.from_pretrained(
        directory, src_lang="en_XX", tgt_lang="de_DE"
    )
    marks = [one for one in tokenizer.get_vocab() if re.fullmatch("[a-z]{2}_[A-Z]{2}", one)]
    marks.sort(key=tokenizer.get_vocab().__getitem__)
    special = {"additional_special_tokens": [*marks, "<mask>"]}  # as older releases name them
    (directory / "special_tokens_map.json").write_text(json.dumps(special), encoding="utf-8")
    config = transformers.MBartConfig(
        vocab_size=len(tokenizer), max_position_embeddings=200, scale_embedding=True,
        decoder_start_token_id=2, **SIZES,
    )  # fmt: skip
    return tokenizer, transformers.MBartForConditionalGeneration(config)


def mbart(directory: Path) -> tuple[Any, Any]:
    """mBART-25: a source ends with its language, and a target starts with its own."""
    splitter("unigram", directory)
    tokenizer = transformers.MBartTokenizer.from_pretrained(
        directory, src_lang="en_XX", tgt_lang="de_DE"
    )
    (directory / "sentencepiece.bpe.model").unlink()
    config = transformers.MBartConfig(
        vocab_size=len(tokenizer), max_position_embeddings=200, scale_embedding=True, **SIZES
    )
    return tokenizer, transformers.MBartForConditionalGeneration(config)


def bart(directory: Path) -> tuple[Any, Any]:
    """BART: byte-level BPE, and a begin of sentence ahead of sources and targets."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    tokenizer.train_from_iterator([*lines("en"), *lines("de")], trainer)
    ends = [(name, tokenizer.token_to_id(name)) for name in ("</s>", "<s>")]
    tokenizer.post_processor = processors.RobertaProcessing(*ends, add_prefix_space=False)
    wrapped = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>",
        unk_token="<unk>", mask_token="<mask>",
    )  # fmt: skip
    config = transformers.BartConfig(vocab_size=len(wrapped), max_position_embeddings=200, **SIZES)
    return wrapped, transformers.BartForConditionalGeneration(config)


def with_random_numbers(model: Any) -> Any:
    """The model with numbers in all parameters that make its logits differ much."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            drawn = torch.randn(parameter.shape, generator=generator) * 0.25
            is_scale = "norm" in name and name.endswith("weight")
            parameter.copy_(drawn + 1 if is_scale else drawn)
        if hasattr(model, "final_logits_bias"):
            bias = torch.randn(model.final_logits_bias.shape, generator=generator)
            model.final_logits_bias.copy_(bias)
    return model.eval()


def write(
    name: str, make: Callable[[Path], tuple[Any, Any]], languages: tuple[str, ...], other: str
) -> None:
    """Write a model and what is computed with it.

    Args:
      languages: those of sources and targets; () for a model without.
      other: another target language.
    """
    directory = ROOT / name
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    tokenizer, model = make(directory)
    model = with_random_numbers(model)
    pad, end = model.config.pad_token_id, model.config.eos_token_id
    sources = tokenizer(lines("en")[:LINES]).input_ids
    labels = tokenizer(text_target=lines("de")[:LINES]).input_ids
    targets = [row[:NUM_TOKENS] for row in labels]
    mark = tokenizer.convert_tokens_to_ids
    start, forced = model.config.decoder_start_token_id, None
    if name == "mbart":  # its labels are shifted in a circle: the mark at their end comes first
        targets = [row[:-1][:NUM_TOKENS] for row in labels]
    if languages and start == end:
        forced = mark(_token(languages[1]))
    elif languages:
        start = mark(_token(languages[1]))
    elif name == "bart":
        forced = model.config.bos_token_id
    model.config.decoder_start_token_id = start
    model.generation_config = transformers.GenerationConfig(
        decoder_start_token_id=start, forced_bos_token_id=forced, pad_token_id=pad,
        eos_token_id=end, num_beams=BEAMS,
        bos_token_id=getattr(model.config, "bos_token_id", None),
        forced_eos_token_id=None,
    )  # fmt: skip
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    inputs = [[start, *row[:-1]] for row in targets]
    logits = []
    with torch.no_grad():
        for source, given in zip(sources, inputs, strict=True):
            ids = {"input_ids": torch.tensor([source]), "decoder_input_ids": torch.tensor([given])}
            logits.append(model(**ids, use_cache=False).logits[0].numpy())
    found = {
        "greedy": _searched(model, sources, 1, forced),
        "beam": _searched(model, sources, BEAMS, forced),
    }
    if other:
        found["other"] = _searched(model, sources, 1, mark(_token(other)))
    np.savez_compressed(
        directory / "goldens.npz",
        sources=_padded(sources, pad), targets=_padded(targets, pad),
        decoder_inputs=_padded(inputs, pad), logits=np.concatenate(logits),
        lengths=np.array([len(row) for row in targets]),
        **{key: _padded(rows, pad) for key, rows in found.items()},
    )  # fmt: skip


def _token(language: str) -> str:
    return language if "_" in language else f"__{language}__"


def _searched(
    model: Any, sources: list[list[int]], beams: int, forced: int | None
) -> list[list[int]]:
    pad = model.config.pad_token_id
    options = {
        "do_sample": False, "bad_words_ids": [[pad]], "num_beams": beams,
        "forced_bos_token_id": forced,
    }  # fmt: skip
    found = []
    for row in sources:
        most = len(row) + EXTRA_TOKENS
        best = model.generate(torch.tensor([row]), max_new_tokens=most, **options)
        found.append(best[0, 1:].tolist())
    return found


def _padded(rows: list[list[int]], pad: int) -> np.ndarray:
    longest = max(map(len, rows))
    return np.array([[*row, *[pad] * (longest - len(row))] for row in rows])


MODELS: dict[str, tuple[Callable[[Path], tuple[Any, Any]], tuple[str, ...], str]] = {
    "m2m100": (m2m100, ("en", "de"), "fr"),
    "nllb": (nllb, ("eng_Latn", "deu_Latn"), "fra_Latn"),
    "mbart50": (mbart50, ("en_XX", "de_DE"), "fr_XX"),
    "mbart": (mbart, ("en_XX", "de_DE"), ""),
    "bart": (bart, (), ""),
}


if __name__ == "__main__":
    for kind in sys.argv[1:] or MODELS:
        write(kind, *MODELS[kind])
