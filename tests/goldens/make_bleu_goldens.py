"""Update `bleu_goldens.json`: what the Moses scripts make of its lines, and multi-bleu's scores.

    python tests/goldens/make_bleu_goldens.py SCRIPTS

SCRIPTS is the directory `scripts` of https://github.com/moses-smt/mosesdecoder. The tests read the
JSON and need neither it nor Perl. Add a case by its `raw` line, or by the `language`, `hypotheses`
and `references` of a corpus; this program fills in the rest:

    lines       of each language, raw lines and what the scripts make of them (`words`)
    corpora     of each corpus its language, hypotheses, references, and the BLEU that
                multi-bleu.perl prints, of two decimals

Both come from this pipeline, on both sides of a corpus:

    replace-unicode-punctuation.perl | tokenizer.perl -q -l LANGUAGE
        | perl -ple 's{(\\S)-(\\S)}{$1 ##AT##-##AT## $2}g'

The hard lines are written for this file; the other lines are those of the bundled corpus, whose
licences are in `t2t_jax/data/bundled/LICENSES.md`. Hypotheses of whole languages are their lines
with words left out, reversed, or taken from other lines.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

GOLDENS = Path(__file__).with_name("bleu_goldens.json")


def pipeline(scripts, lines, language):
    """The lines after all three steps."""
    commands = (
        ["perl", scripts / "tokenizer/replace-unicode-punctuation.perl"],
        ["perl", scripts / "tokenizer/tokenizer.perl", "-q", "-l", language],
        ["perl", "-ple", "s{(\\S)-(\\S)}{$1 ##AT##-##AT## $2}g"],
    )
    text = "".join(f"{line}\n" for line in lines).encode()
    for command in commands:
        text = subprocess.run(command, input=text, capture_output=True, check=True).stdout
    return text.decode().split("\n")[:-1]


def multi_bleu(scripts, hypotheses, references):
    """The score that multi-bleu.perl prints for tokenised lines."""
    with tempfile.NamedTemporaryFile("w", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in references)
        file.flush()
        printed = subprocess.run(
            ["perl", scripts / "generic/multi-bleu.perl", file.name],
            input="".join(f"{line}\n" for line in hypotheses).encode(),
            capture_output=True,
            check=True,
        ).stdout
    return float(re.match(rb"BLEU = ([0-9.]+),", printed)[1])


def main():
    """Run the scripts on all lines and write the file."""
    scripts = Path(sys.argv[1])
    goldens = json.loads(GOLDENS.read_text(encoding="utf-8"))
    for language, lines in goldens["lines"].items():
        words = pipeline(scripts, [line["raw"] for line in lines], language)
        for line, tokens in zip(lines, words, strict=True):
            line["words"] = tokens
    for corpus in goldens["corpora"]:
        sides = (
            pipeline(scripts, corpus[side], corpus["language"])
            for side in ("hypotheses", "references")
        )
        corpus["bleu"] = multi_bleu(scripts, *sides)
    text = json.dumps(goldens, ensure_ascii=False, indent=1) + "\n"
    GOLDENS.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
