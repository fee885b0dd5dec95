"""Language codes, and the languages with rules for splitting text."""

import re

# Languages for which sentencex splits sentences or sacremoses splits words: the code of ISO 639-1,
# then the codes of ISO 639-3 and 639-2, with the individual languages that NLLB names.
_CODES = (
    "ab abk|am amh|an arg|ar ara arb|as asm|av ava|ay aym ayr|ba bak|be bel|bg bul|bm bam|bn ben|"
    "br bre|ca cat|ce che|co cos|cs ces cze|cv chv|da dan|de deu ger|el ell gre|en eng|es spa|"
    "et est ekk|ff ful fuv|fi fin|fr fra fre|ga gle|gl glg|gn grn gug|gu guj|hi hin|ht hat|hu hun|"
    "hy hye arm|is isl ice|it ita|ja jpn|kk kaz|kl kal|kn kan|ko kor|kv kom|lb ltz|li lim|ln lin|"
    "lt lit|lv lav lvs|mg mlg plt|ml mal|mr mar|my mya bur|nl nld dut|oc oci|or ori ory|os oss|"
    "pa pan|pl pol|pt por|qu que quy|ro ron rum|ru rus|sa san|sg sag|sk slk slo|sl slv|sv swe|"
    "ta tam|te tel|tt tat|ty tah|uk ukr|wa wln|wo wol|zh zho chi cmn"
)
_TWO_LETTERS = {code: iso for iso, *codes in map(str.split, _CODES.split("|")) for code in codes}


def language_of(code: str) -> str:
    """Convert a language code to the code that sentencex and sacremoses know.

    ISO 639 codes (`DE`, `deu`), BCP 47 tags (`de-AT`), locales (`de_DE.UTF-8`) and FLORES codes
    (`deu_Latn`) all become `de`. Other codes lose script and region; the libraries then use
    English rules.
    """
    letters = re.search("[a-z]+", code.lower())
    language = letters[0] if letters else ""
    return _TWO_LETTERS.get(language, language)
