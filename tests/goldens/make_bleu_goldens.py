"""Write `bleu_goldens.json`: what the Moses scripts make of hard lines, and multi-bleu's scores.

    python tests/goldens/make_bleu_goldens.py SCRIPTS

SCRIPTS is the directory `scripts` of https://github.com/moses-smt/mosesdecoder. The tests read the
JSON and need neither it nor Perl. It has

    lines       of each language, raw lines and what the scripts make of them (`words`)
    corpora     of each corpus its language, hypotheses, references, and the BLEU that
                multi-bleu.perl prints, of two decimals

Both come from this pipeline, on both sides of a corpus:

    replace-unicode-punctuation.perl | tokenizer.perl -q -l LANGUAGE
        | perl -ple 's{(\\S)-(\\S)}{$1 ##AT##-##AT## $2}g'

The hard lines are written for this file; the other lines are those of the bundled corpus, whose
licences are in `t2t_jax/data/bundled/LICENSES.md`.
"""

import gzip
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

BUNDLED = Path(__file__).parents[2] / "t2t_jax" / "data" / "bundled"

LINES = {
    "de": [
        "„Das ist gut“, sagte sie – und ging.",
        "‚Einfach‘ und “englisch” und ”schwedisch” und «so» und »so« und ‹so›.",
        "Sie stieg um das 3,5-Fache, z. B. von 1.000,5 auf 3.501,75 Mio. Euro.",
        "Am 5. Mai um 12:30 Uhr, d.h. mittags, kam Dr. Müller-Lüdenscheidt an.",
        "Siehe Nr. 5, Art. 36 und Abs. 2 usw.",
        "Das ist ein Satz mit z.B.",
        "Die Grenze liegt bei Artikel 36.",
        "Er wohnt in der St. Petersburger Str. und mag O.K. nicht.",
        "Die Nord-Süd-Achse, die E-Mail-Adresse und das Mund-zu-Mund-Ding",
        "a-b-c x-ä-y a--b - -c d- ä-ö-ü 1-2-3-4",
        "Ein- und Ausgabe; hoch- und runtergehen",
        "Das geht's los, wie Hans' Auto, 's ist 90er's „Rock 'n' Roll“.",
        "Mehr unter https://www.beispiel.de/a-b?x=1&y=[2]|3<4> oder info@beispiel.de.",
        "Tom & Jerry < > | [ ] ( ) { } / \\ * # @ § $ € % ‰ ^ ~ ` ´ _ + =",
        "100% von 50 % sind 2/3, ½ oder ²; 20°C, m² und H₂O.",
        "Warte… oder ... oder .... oder..oder . . . ja...",
        "Ende mit Punkten...",
        "Komma,ohne,Leerzeichen,1,2,3, 4,a b,5, 10,",
        "Halb―breit – lang — Gedanken−strich ‐ weich\u00adtrenn",
        "Ｖｏｌｌ，ｂｒｅｉｔ。 Ja．Nein、 oder：（１２３４５６７８９０）！？；～％",
        "「Zitat」《Titel》【Kasten】〈spitz〉∶ 5∶3 ━ “Ende”’…",
        "  Leer\tzeichen\u00a0fest\u2009schmal \u3000 weit  ",
        "Steuer\u0001zeichen\u001cund\u001fTrenner",
        "Chinesisch 中文字 und 日本語のテスト und 한국어, Русский, Ελληνικά",
        "a\u0308 zerlegt und ä ganz, ẞ und ﬁ",
        "'Er ist gut.'",
        'Gut."',
        "&quot;schon&quot; &amp; so &#124;",
        "-",
        ".",
        "",
    ],
    "en": [
        "It's the dogs' and Tom's, isn't it? 'Yes,' he said, 'tis.",
        "The 1990's rock 'n' roll, the '60s and 5' 3\" of O'Neil's.",
        "'He is very capable.'",
        "“Quoted,” she said – “it’s ‘fine’…”",
        "Mr. Smith of the U.S. met Mrs. Jones, Ph.D., at 5 p.m. on Jan. 5.",
        "It happened in the U.S.A.",
        "No. 5 and No. Five; pp. 3 and Gov. Brown, i.e. him, e.g.",
        "A well-known state-of-the-art e-mail-based T-shirt, 10-12 and x-é-y.",
        "It rose 3.5% to 1,234,567.89, or £5.00/$6 (at 4.63V).",
        "Read python3.11, resolv.conf and CGI::Fast at http://a.b/c-d?e=f&g.",
        "a,b,c 1,2,3 a,1 1,a ,a ,1 1,",
        "<b>Bold</b> & [link](x) | {brace} #tag @user",
        "Wait... what.. no . . . oh....",
    ],
    "fr": [
        "«\u00a0L'homme d'aujourd'hui n'est qu'un rêve\u00a0», dit-il\u00a0; jusqu’à 5\u00a0%.",
        "C’est-à-dire : peut-être",
        "Y a-t-il l'eau à 1\u202f000,5 m² ? Oui !",
        "M. Dupont, Mme. Durand et le Dr. Martin habitent p. 5, av. Foch.",
        "L' 'amour' d' été, 'l'été', rock 'n' roll et 90's",
        "C'est l'O.N.U.",
        "Peut-être est-ce vis-à-vis de là-bas…",
    ],
}

SMALL_CORPORA = [
    (
        "de",
        ["„Das ist gut“, sagte sie.", "Die Nord-Süd-Achse ist 3,5-mal so lang usw.", ""],
        ['"Das ist gut", sagte sie.', "Die Nord-Süd-Achse ist 3,5 Mal so lang usw.", "Ja."],
    ),
    ("de", ["Das ist gut", "ja ja"], ["Das ist sehr gut", "ja ja"]),
    ("de", ["das haus ist sehr groß"], ["Das Haus ist sehr groß"]),
    ("de", ["der der der der der der der der"], ["der der der der und das"]),
    (
        "en",
        ["It's Tom's well-known e-mail.", "The dogs' owner isn't here."],
        ["It’s Tom’s well-known e-mail.", "The owner of the dogs isn't here."],
    ),
]


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


def bundled(language):
    """Every 20th line of the bundled test split."""
    with gzip.open(BUNDLED / f"test.{language}.gz", "rt", encoding="utf-8") as file:
        return [line.rstrip("\n") for line in file][::20]


def spoilt(lines):
    """The lines as a poor system might give them: words left out, reversed, or of other lines."""
    hypotheses = []
    for number, line in enumerate(lines):
        words = [word for i, word in enumerate(line.split(" ")) if (i + number) % 7]
        half = len(words) // 2
        if number % 3 == 0:
            words[half:] = reversed(words[half:])
        if number % 4 == 0:
            words.append(lines[number - 1].split(" ")[0])
        hypotheses.append(" ".join(words))
    return hypotheses


def main():
    """Run the scripts on all lines and write the file beside this script."""
    scripts = Path(sys.argv[1])
    lines = {
        "de": LINES["de"] + bundled("de"),
        "en": LINES["en"] + bundled("en"),
        "fr": LINES["fr"],
    }
    golden_lines = {}
    corpora = list(SMALL_CORPORA)
    for language, raw in lines.items():
        words = pipeline(scripts, raw, language)
        golden_lines[language] = [
            {"raw": line, "words": tokens} for line, tokens in zip(raw, words, strict=True)
        ]
        corpora.append((language, spoilt(raw), raw))
    golden_corpora = [
        {
            "language": language,
            "hypotheses": hypotheses,
            "references": references,
            "bleu": multi_bleu(
                scripts,
                pipeline(scripts, hypotheses, language),
                pipeline(scripts, references, language),
            ),
        }
        for language, hypotheses, references in corpora
    ]
    goldens = {"lines": golden_lines, "corpora": golden_corpora}
    text = json.dumps(goldens, ensure_ascii=False, indent=1) + "\n"
    Path(__file__).with_name("bleu_goldens.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
