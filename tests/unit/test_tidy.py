"""The words of the project, and the lists that must stay complete.

A word is banned when Service Bus, AMQP or ordinary English has a plainer one for the same thing. A banned word is listed here with the word to
use in its place.
"""

from __future__ import annotations

import io
import re
import subprocess
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "pairbus"
DECISIONS = ROOT / "docs" / "decisions"
FIRST_DECISIONS_MAX = 12
"""How many decisions ARCHITECTURE.md may name as those to read first. The index lists all of them."""

# In any text: documents, comments, docstrings, messages.
WORDS = {
    "anew": "again",
    "whoever": "the noun: the client, the receiver, the caller",
    "reckon": "calculate",
    "reckons": "calculates",
    "reckoned": "calculated",
    "reckoning": "calculation",
    "hence": "so, therefore",
    "henceforth": "from then on",
    "lest": "so that … not",
    "thereof": "of it, or the noun",
    "whence": "from which",
    "wherein": "in which",
    "whilst": "while",
    "whosoever": "the noun: the client, the receiver, the caller",
}
# Phrases in any text.
PHRASES = {
    "at home": "on this machine, loopback",
    "bad day": "failure, outage",
    "bad days": "failures, outages",
    "bring home": "deliver to the primary, drain",
    "brings home": "delivers to the primary, drains",
    "brought home": "delivered to the primary, drained",
    "for want of": "because there was no",
    "game day": "drill",
    "game days": "drills",
    "go home": "go to the primary",
    "goes home": "goes to the primary",
    "set aside": "dead-letter; for rows: quarantine",
    "sets aside": "dead-letters",
    "stand still": "be unavailable, stop",
    "stands still": "is unavailable, stops",
    "way home": "drain",
    "without being told": "by itself, automatically",
}
# As a name in the code, alone or as one of the words of a longer name.
NAMES = {
    "hall": "registry",
    "tongue": "protocol",
    "speech": "output",
    "album": "the thing that it collects",
    "told": "reported, expected, given",
    "anew": "again",
    "board": "view, switchboard",
    "game": "drill, run",
    "hub": "page, server",
    "news": "events",
    "parcel": "message",
    "reckon": "calculate",
    "sniff": "detect",
    "speak": "write",
    "suppose": "assume",
    "whoever": "the noun",
    "witness": "mark",
    "witnessed": "marked",
}
# Where tests are skipped. Nothing else may be: a skip hides a broken setup, and what `make setup` installs is always there.
SKIPS = {
    "conformance/test_proton.py": "`make conformance` installs Qpid Proton",
    "conformance/test_proton_transactions.py": "likewise",
    "conformance/test_uamqp.py": "`make conformance` installs uAMQP, which does not exist for every Python",
    "conftest.py": "tests marked `uncompiled`, on the compiled form",
    "integration/package/test_distribution.py": "long form only: needs a C compiler",
    "simulation/test_broker_world.py": "`make sim SEED=n` replays one world",
    "simulation/test_cluster_world.py": "likewise",
    "small_disk.py": "a container or a user without the right to mount",
}
# As the whole name of a class.
CLASSES = {"Letter": "BacklogMessage"}


def texts() -> Iterator[Path]:
    yield from sorted(SOURCE.rglob("*.py"))
    yield from sorted((ROOT / "docs").rglob("*.md"))
    yield from (ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "Makefile"))


def banned_words(text: str) -> set[str]:
    """The banned words in a text, in lower case."""
    return set(re.findall(r"[a-z]+", text.lower())) & WORDS.keys()


def banned_phrases(text: str) -> set[str]:
    """The banned phrases in a text, also where a line ends within one. Names such as ``--set-aside`` are none."""
    line = " ".join(text.lower().split())
    return {phrase for phrase in PHRASES if re.search(rf"\b{phrase}\b", line)}


def banned_names(code: str) -> set[str]:
    """The banned names in Python code: what they are made of, with and without capitals."""
    found: set[str] = set()
    if not any(name in code.lower() for name in (*NAMES, *map(str.lower, CLASSES))):
        return found
    for token in tokenize.generate_tokens(io.StringIO(code).readline):
        if token.type == tokenize.NAME:
            parts = {part.lower() for part in re.findall(r"[A-Z]?[a-z]+", token.string)}
            found |= parts & NAMES.keys()
            found |= {token.string} & CLASSES.keys()
    return found


def test_no_banned_word_is_used() -> None:
    found = {
        f"{path.relative_to(ROOT)}: {word} (write: {WORDS[word]})"
        for path in texts()
        for word in banned_words(path.read_text())
    }

    assert sorted(found) == []


def test_no_banned_phrase_is_used() -> None:
    found = {
        f"{path.relative_to(ROOT)}: {phrase} (write: {PHRASES[phrase]})"
        for path in texts()
        for phrase in banned_phrases(path.read_text())
    }

    assert sorted(found) == []


def test_no_banned_name_is_used() -> None:
    found = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in sorted(SOURCE.rglob("*.py"))
        for name in banned_names(path.read_text()) | banned_names(path.stem)
    }

    assert sorted(found) == []


def test_banned_words_and_names_are_found() -> None:
    assert banned_words("Written Anew, by whoever asks") == {"anew", "whoever"}
    assert banned_words("renewed") == set()
    assert banned_phrases("messages are *set\n  aside* on the Way home.") == {"set aside", "way home"}
    assert banned_phrases("--set-aside, set_aside, offset asides") == set()
    assert banned_names("class SpeechOf:\n    told_at = Letter()\n") == {"speech", "told", "Letter"}
    assert banned_names("shallow = letter\n# told in a comment\n") == set()


def test_every_decision_is_listed_once_with_its_own_title() -> None:
    listed = re.findall(r"^- \[(\d+)\]\((\S+)\) (.+)$", (DECISIONS / "index.md").read_text(), re.MULTILINE)
    written = [
        (path.name[:4], path.name, re.sub(r"^# (\d+\W+)?", "", path.read_text().split("\n", 1)[0]))
        for path in sorted(DECISIONS.glob("0*.md"))
    ]

    assert sorted(listed) == written


def test_the_architecture_names_a_few_decisions_and_leads_to_the_others() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text().partition("## Decisions")[2]

    assert "(docs/decisions/index.md)" in text
    assert 5 <= len(re.findall(r"^- ", text, re.MULTILINE)) <= FIRST_DECISIONS_MAX


def test_every_picture_is_shown() -> None:
    showing = [ROOT / "README.md", ROOT / "mkdocs.yml", *(ROOT / "docs").rglob("*.md")]
    pages = "".join(page.read_text() for page in showing)

    assert [file.name for file in (ROOT / "docs/images").iterdir() if file.name not in pages] == []


def test_tests_are_skipped_only_where_a_reason_is_listed() -> None:
    skip = re.compile(r"pytest\.skip\(|mark\.skip|importorskip\(|xfail\(")
    tests = ROOT / "tests"
    found = {str(path.relative_to(tests)) for path in tests.rglob("*.py") if skip.search(path.read_text())}

    assert found == set(SKIPS)


# A name with dots in double backticks whose first word is that of a package, and which is no module.
VALUES = {"message.location", "client._life_lock", "runtime.notify", "server.pem", "server.key"}
QUOTED = re.compile(r"``([a-z_]+(?:\.\w+)+)``")


def modules() -> dict[str, Path]:
    """Return every module and package of ours by its whole name."""
    found = {}
    for path in SOURCE.rglob("*.py"):
        parts = path.relative_to(SOURCE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def is_there(name: str, known: dict[str, Path]) -> bool:
    """Whether a quoted name is a module, perhaps without its first packages, or what a module defines or imports."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        head = "." + ".".join(parts[:count])
        files = [path for module, path in known.items() if f".{module}".endswith(head)]
        if files and count == len(parts):
            return True
        if files:
            word = re.escape(parts[count])
            defined = re.compile(rf"\b(class|def) {word}\b|^{word}\b|import .*\b{word}\b", re.MULTILINE)
            return any(defined.search(path.read_text()) for path in files)
    return False


def test_every_module_that_a_docstring_names_is_there() -> None:
    known = modules()
    packages = {path.parent.name for path in known.values()}
    gone = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in known.values()
        for name in QUOTED.findall(path.read_text())
        if name.split(".")[0] in packages and name not in VALUES and not is_there(name, known)
    }
    assert gone == set()


def test_a_module_that_is_not_there_is_found() -> None:
    known = modules()
    for name in ("drain.shell", "pairbus.drain.shell.Drain", "rules.plan", "drain.shell.Drain"):
        assert is_there(name, known), name
    for name in ("client.sender", "drain.shell.Drains", "pairbus.server.Server", "ell.Drain"):
        assert not is_there(name, known), name


def test_a_test_that_waits_for_a_time_says_sleep() -> None:
    """``tests.waiting`` waits for what a test expects; a sleep under another name would be overlooked."""
    disguised = re.compile(r"Event\(\)\.wait\([^)]")

    assert [path.name for path in (ROOT / "tests").rglob("*.py") if disguised.search(path.read_text())] == []


# What may lie at the root of the repository. A broker that is started there writes its directories and its keys there, and one commit once took them.
AT_THE_ROOT = {
    ".ci", ".gitignore", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "MANIFEST.in", "Makefile", "README.md",
    "bench", "docs", "mkdocs.yml", "packaging", "pyproject.toml", "requirements", "setup.py", "src", "tests", "tools",
}  # fmt: skip
# What a broker, a drain or a client leaves behind, wherever it was started.
WORKING_FILES = re.compile(
    r"(^|/)(ready\.json|up\.lock|[^/]+\.(segment|pem|key|ledger|parquet|sqlite3?|log))$"
)


def tracked_files() -> list[str]:
    """Return the paths that git has. A source distribution has no git and nothing to check."""
    if not (ROOT / ".git").exists():
        return []
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    return [path for path in listed.stdout.decode().split("\0") if path]


def test_nothing_that_a_running_broker_writes_is_in_the_repository() -> None:
    tracked = tracked_files()
    assert {path.split("/")[0] for path in tracked} <= AT_THE_ROOT
    assert [path for path in tracked if WORKING_FILES.search(path)] == []


def test_working_files_are_recognised() -> None:
    for path in ("up.lock", "a/ready.json", "store/0000000001.segment", "tls/ca.key", "x/primary-0.ledger"):
        assert WORKING_FILES.search(path), path
    for path in ("requirements/dev.lock", "docs/ready.json.md", "src/pairbus/server/ready.py"):
        assert not WORKING_FILES.search(path), path
