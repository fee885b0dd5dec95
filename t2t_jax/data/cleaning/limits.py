"""Codes of languages."""


def base_language(code: str) -> str:
    """Return the language of a code that may name a region too: `pt` of `pt-BR` or `pt_br`."""
    return code.lower().replace("_", "-").partition("-")[0]
