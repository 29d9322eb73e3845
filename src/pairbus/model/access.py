"""Shared access rules: a name, rights and two keys (M1, M5, M7)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from pairbus.errors import InvalidEntity

LISTEN: Final = "Listen"
SEND: Final = "Send"
MANAGE: Final = "Manage"
RIGHTS: Final = (LISTEN, SEND, MANAGE)
ROOT_RULE: Final = "RootManageSharedAccessKey"
RULE_NAME_MAX: Final = 256
KEY_LENGTH_MAX: Final = 256
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_KEY: Final = re.compile(r"[!-:<-~]+")
_NAME_SHOWN_MAX: Final = 64


@dataclass(frozen=True, kw_only=True)
class AccessRule:
    """Who holds one of the two keys has the rights."""

    name: str
    rights: tuple[str, ...]
    primary_key: str
    secondary_key: str
    created_at: int = 0
    modified_at: int = 0

    def __post_init__(self) -> None:
        if not self.name or len(self.name) > RULE_NAME_MAX:
            raise InvalidEntity(f"An authorization rule's name needs 1 to {RULE_NAME_MAX} characters.")
        for right in self.rights:
            if right not in RIGHTS:
                raise InvalidEntity(f"Rule '{self.name}' grants '{right}': rights are {', '.join(RIGHTS)}.")
        if MANAGE in self.rights and not (LISTEN in self.rights and SEND in self.rights):
            raise InvalidEntity(f"Rule '{self.name}' grants Manage, which needs Send and Listen as well.")
        for key in (self.primary_key, self.secondary_key):
            if not key or len(key) > KEY_LENGTH_MAX:
                raise InvalidEntity(
                    f"A key of rule '{self.name}' is empty or longer than {KEY_LENGTH_MAX} characters."
                )

    def __repr__(self) -> str:
        # Keys appear in no log and no error (M7).
        return f"AccessRule(name={self.name!r}, rights={self.rights!r})"

    def grants(self, right: str) -> bool:
        """Whether the rule holds this right. Manage implies the others."""
        return right in self.rights or MANAGE in self.rights

    def to_dict(self) -> dict[str, object]:
        """For the log, keys included."""
        return {
            "name": self.name,
            "rights": list(self.rights),
            "primary_key": self.primary_key,
            "secondary_key": self.secondary_key,
            "created_at": self.created_at,
            "modified_at": self.modified_at,
        }

    @staticmethod
    def from_dict(data: dict[str, object]) -> AccessRule:
        """The reverse of ``to_dict``."""
        rights = data["rights"]
        created, modified = data["created_at"], data["modified_at"]
        assert isinstance(rights, list), rights
        assert isinstance(created, int), created
        assert isinstance(modified, int), modified
        return AccessRule(
            name=str(data["name"]),
            rights=tuple(str(right) for right in rights),
            primary_key=str(data["primary_key"]),
            secondary_key=str(data["secondary_key"]),
            created_at=created,
            modified_at=modified,
        )


def check_new_name(name: str) -> None:
    """Refuse a name that a new rule must not have. Rules that are stored already keep theirs."""
    if len(name) > RULE_NAME_MAX or _NAME.fullmatch(name) is None:
        shown = ascii(name[:_NAME_SHOWN_MAX])
        raise InvalidEntity(
            f"An authorization rule cannot be called {shown}: use 1 to {RULE_NAME_MAX} letters, digits, '.', '-' and '_', "
            "and begin with a letter or digit."
        )


def check_new_key(name: str, key: str, *, is_needed: bool = False) -> None:
    """Refuse a key that a client could not use: connection strings end at a semicolon, and clients strip whitespace.

    ``is_needed``: none is made for who leaves it out.
    """
    if len(key) > KEY_LENGTH_MAX:
        problem = f"has {len(key)} characters"
    elif not key:
        problem = "is empty"
    elif _KEY.fullmatch(key) is None:
        wrong = next(index for index, character in enumerate(key) if _KEY.fullmatch(character) is None)
        problem = f"has a character that is not allowed, at position {wrong + 1}"
    else:
        return
    # The key itself appears in no error (M7).
    raise InvalidEntity(
        f"A key of rule {name[:_NAME_SHOWN_MAX]!a} {problem}: use 1 to {KEY_LENGTH_MAX} printable ASCII characters without "
        f"spaces and ';'{'' if is_needed else ', or leave the key out, and a random one is made'}."
    )


def key_bytes(key: str) -> bytes | None:
    """A key as clients sign with it; None: no client can have it, so nothing matches it."""
    try:
        return key.encode()
    except UnicodeEncodeError:
        return None
