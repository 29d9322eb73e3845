"""Makes text from elsewhere safe to show."""

from __future__ import annotations


def safe_text(value: object, keep: str = "", length_max: int | None = None) -> str:
    """Text for a terminal, a log line or a table: every character that is not printable is shown as its escape.

    Names, bodies and error texts come from other people. Shown raw, a control character could move the cursor, clear
    the screen or reverse the reading direction (M8). ``keep`` lists control characters that stay, such as line breaks.
    A text longer than ``length_max`` is cut and ends in an ellipsis.
    """
    text = str(value)
    if length_max is not None and len(text) > length_max:
        text = text[: length_max - 1] + "…"
    return "".join(
        character if character.isprintable() or character in keep else ascii(character)[1:-1]
        for character in text
    )
