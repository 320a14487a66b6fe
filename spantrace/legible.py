"""Text of others, such as names in a trace, made harmless to whatever shows it."""

from __future__ import annotations

import unicodedata


def legible(text: str) -> str:
    """The text with U+FFFD for each control character and lone surrogate: terminals obey them, HTML holds none."""
    if text.isprintable():
        return text
    return "".join(letter if unicodedata.category(letter) not in ("Cc", "Cs") else "\ufffd" for letter in text)
