"""What the site changes in a page, before it is shown."""

from __future__ import annotations

from pathlib import Path

from tools.site_hooks import on_page_markdown

DOCS = Path(__file__).parents[2] / "docs"


def test_commands_are_shown_without_prompts_so_that_they_can_be_copied() -> None:
    page = "```console run\n$ make demo      # a minute\n$ make test\n```\n\nText.\n"

    assert on_page_markdown(page) == "```bash\nmake demo      # a minute\nmake test\n```\n\nText.\n"


def test_commands_with_their_output_keep_the_prompts() -> None:
    page = "```console\n$ pairbus --version\npairbus 0.1.0\n```\n"

    assert on_page_markdown(page) == page


def test_words_for_the_tests_are_not_shown() -> None:
    assert on_page_markdown("```python run\nprint()\n```\n") == "```python\nprint()\n```\n"
    assert on_page_markdown("```console run postgresql\n$ true\n```\n") == "```bash\ntrue\n```\n"


def test_a_pipe_in_the_code_of_a_table_has_no_backslash() -> None:
    """Elsewhere it needs one, or it would end the cell; this generator shows it."""
    row = "| `--engine [spark\\|local]` | one \\| other |\n"

    assert on_page_markdown(row) == "| `--engine [spark|local]` | one \\| other |\n"


def test_no_command_of_a_page_is_copied_with_its_prompt() -> None:
    shown = "".join(on_page_markdown(page.read_text()) for page in DOCS.rglob("*.md"))

    assert "```console run" not in shown
    assert shown.count("```bash\n") > shown.count("```console\n")
