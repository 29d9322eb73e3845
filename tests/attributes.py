"""The attributes of a class with slots, in both forms: mypyc keeps them under a name of its own."""

from __future__ import annotations


def attribute_names(kind: type) -> tuple[str, ...] | None:
    """The names, or nothing for a class without slots."""
    names = getattr(kind, "__mypyc_attrs__", None) or getattr(kind, "__slots__", None)
    return None if names is None else tuple(names)
