"""Codes of languages, and the languages whose rules the program applies to a text."""

import re

# Languages with rules for the ends of sentences or words, in sentencex or sacremoses: the code of
# ISO 639-1, then those of ISO 639-3 and 639-2, with the individual languages that NLLB names.
_CODES = (
    "ab abk|am amh|an arg|ar ara arb|as asm|av ava|ay aym ayr|ba bak|be bel|bg bul|bm bam|bn ben|"
    "br bre|ca cat|ce che|co cos|cs ces cze|cv chv|da dan|de deu ger|el ell gre|en eng|es spa|"
    "et est ekk|ff ful fuv|fi fin|fr fra fre|ga gle|gl glg|gn grn gug|gu guj|hi hin|ht hat|hu hun|"
    "hy hye arm|is isl ice|it ita|ja jpn|kk kaz|kl kal|kn kan|ko kor|kv kom|lb ltz|li lim|ln lin|"
    "lt lit|lv lav lvs|mg mlg plt|ml mal|mr mar|my mya bur|nl nld dut|oc oci|or ori ory|os oss|"
    "pa pan|pl pol|pt por|qu que quy|ro ron rum|ru rus|sa san|sg sag|sk slk slo|sl slv|sv swe|"
    "ta tam|te tel|tt tat|ty tah|uk ukr|wa wln|wo wol|zh zho chi cmn"
)
_TWO_LETTERS = {
    other: two for two, *others in map(str.split, _CODES.split("|")) for other in others
}


def language_of(code: str) -> str:
    """Return the language code that selects sentence and word rules.

    The code is one of ISO 639 (`de`, `deu`), a BCP 47 tag (`de-AT`), a locale (`de_DE.UTF-8`) or a
    code of FLORES and NLLB (`deu_Latn`), in upper or lower case; all of these return `de`. For
    an unknown code or a language without rules, return the code without script and region, in lower
    case. sentencex and sacremoses then use the rules of English.
    """
    letters = re.search("[a-z]+", code.lower())
    language = letters[0] if letters else ""
    return _TWO_LETTERS.get(language, language)
