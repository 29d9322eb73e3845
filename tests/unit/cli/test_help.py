"""Every command explains itself: what it does, an example, its options; and a shell can complete it."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from pairbus.cli import root as roots
from pairbus.cli.completion import SHELLS, VARIABLE


def commands(group: click.Group, context: click.Context) -> Iterator[tuple[str, click.Command]]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        path = f"{context.command_path} {name}"
        yield path, command
        if isinstance(command, click.Group):
            yield from commands(command, click.Context(command, info_name=name, parent=context))


ALL = dict(commands(roots.root, click.Context(roots.root, info_name="pairbus")))


def shown(path: str) -> str:
    result = CliRunner().invoke(roots.root, [*path.split()[1:], "--help"], prog_name="pairbus")
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize("path", ALL)
def test_every_command_has_an_example_of_itself(path: str) -> None:
    text = shown(path)

    assert re.search(rf"^ *Examples?:\n(.*\n)*? .*\b{path}\b", text, re.MULTILINE), text


@pytest.mark.parametrize("path", ALL)
def test_help_fits_a_terminal_of_80_columns(path: str) -> None:
    assert [line for line in shown(path).splitlines() if len(line) > 80] == []


@pytest.mark.parametrize("path", ALL)
def test_no_bound_is_shown_where_there_is_none(path: str) -> None:
    assert "None" not in shown(path)


@pytest.mark.parametrize("path", ALL)
def test_an_example_means_the_same_in_a_shell(path: str) -> None:
    """``$DeadLetterQueue`` without quotes is an empty variable there."""
    examples = re.findall(r"^ +(?:\w+=\S+ )?pairbus .*$", shown(path), re.MULTILINE)

    assert [line for line in examples if re.search(r"\$[A-Z]\w*[a-z]", re.sub(r"'[^']*'", "", line))] == []


@pytest.mark.parametrize("path", ALL)
def test_every_command_says_what_it_does(path: str) -> None:
    assert ALL[path].help, path


NUMBERS = [
    (path, parameter.opts[0])
    for path, command in ALL.items()
    for parameter in command.params
    if isinstance(parameter.type, click.types.FloatParamType | click.types.IntParamType)
]


@pytest.mark.parametrize("number", ["nan", "inf", "-inf", "x"])
@pytest.mark.parametrize(("path", "flag"), NUMBERS)
def test_every_numeric_option_refuses_what_is_no_number(path: str, flag: str, number: str) -> None:
    """``nan`` passes every comparison: a bound alone lets it through."""
    [parameter] = [one for one in ALL[path].params if flag in one.opts]

    with pytest.raises(click.BadParameter):
        parameter.type(number, parameter, None)


TEXTS = [
    (path, parameter)
    for path, command in ALL.items()
    for parameter in command.params
    if not (isinstance(parameter, click.Option) and parameter.is_flag)
    and parameter.type is not click.UNPROCESSED
]
EMPTY = {("pairbus send", name) for name in ("body", "subject", "content_type")}
"""What a message may have empty."""


@pytest.mark.parametrize(
    ("path", "parameter"), TEXTS, ids=[f"{path} {parameter.name}" for path, parameter in TEXTS]
)
def test_an_empty_value_is_wrong_usage(path: str, parameter: click.Parameter) -> None:
    """``--ready-file "$FILE"`` without the variable would take the namespace of the environment."""
    words = path.split()[1:]
    if isinstance(parameter, click.Option):
        words += [parameter.opts[0], ""]
    else:
        for other in ALL[path].params:
            if isinstance(other, click.Argument) and (other.required or other is parameter):
                choices = getattr(other.type, "choices", ["name"])
                words.append("" if other is parameter else choices[0])
    if isinstance(ALL[path], click.Group):
        words.append(ALL[path].list_commands(click.Context(ALL[path]))[0])  # type: ignore[attr-defined]

    if (path, parameter.name) in EMPTY:
        assert parameter.process_value(click.Context(ALL[path]), "") == ""
        return
    result = CliRunner().invoke(roots.root, words, prog_name="pairbus")

    assert result.exit_code == 2, result.output
    shown = (
        parameter.opts[0]
        if isinstance(parameter, click.Option)
        else parameter.make_metavar(click.Context(ALL[path]))
    )
    assert f"Invalid value for '{shown}'" in result.output


@pytest.mark.parametrize("shell", SHELLS)
def test_completion_prints_a_script_that_asks_pairbus(shell: str) -> None:
    result = CliRunner().invoke(roots.root, ["completion", shell], prog_name="pairbus")

    assert result.exit_code == 0
    assert VARIABLE in result.stdout


def test_the_script_for_bash_is_sound_and_its_question_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    script = CliRunner().invoke(roots.root, ["completion", "bash"], prog_name="pairbus").stdout
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)

    result = CliRunner().invoke(
        roots.root,
        [],
        prog_name="pairbus",
        env={VARIABLE: "bash_complete", "COMP_WORDS": "pairbus store ch", "COMP_CWORD": "2"},
        complete_var=VARIABLE,
    )

    assert result.stdout.strip() == "plain,check"


def ended(*arguments: str) -> int:
    with pytest.raises(SystemExit) as end:
        roots.main(list(arguments))
    return int(end.value.code or 0)


def test_pairbus_alone_shows_its_help_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended() == 0

    page = capsys.readouterr()
    assert page.err == ""
    assert page.out.count("\n") > len(roots.COMMANDS)
    assert "Commands:" in page.out


@pytest.mark.parametrize("group", ["entity", "backlog", "store", "cost", "bench"])
def test_a_group_alone_shows_its_help_page_as_a_mistake(
    group: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended(group) == roots.EXIT_USAGE

    assert capsys.readouterr().err.count("\n") > 5


@pytest.mark.parametrize(
    ("typed", "meant"),
    [(["sned"], "send"), (["entity", "lst"], "list"), (["backlog", "redrvie"], "redrive")],
)
def test_a_mistyped_command_is_answered_with_the_nearest(
    typed: list[str], meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended(*typed) == roots.EXIT_USAGE

    assert f"Did you mean {meant}?" in capsys.readouterr().err


REQUIRED = {
    (path, parameter.opts[0]): parameter
    for path, command in ALL.items()
    for parameter in command.params
    if isinstance(parameter, click.Option) and parameter.required
}


@pytest.mark.parametrize(("path", "name"), REQUIRED)
def test_a_required_option_that_is_missing_is_named(
    path: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With everything else that the command needs, and nothing from the environment."""
    for parameter in REQUIRED.values():
        monkeypatch.delenv(str(parameter.envvar), raising=False)
    words = path.split()[1:]
    for other in ALL[path].params:
        if isinstance(other, click.Argument) and other.required:
            words.append("name")
        elif isinstance(other, click.Option) and other.required and other.opts[0] != name:
            words += [other.opts[0], "a=b"]

    result = CliRunner().invoke(roots.root, words, prog_name="pairbus")

    assert result.exit_code == 2, result.output
    assert f"Missing option '{name}'" in result.output


def test_required_options_of_one_and_of_many_values_are_tried() -> None:
    assert {bool(parameter.multiple) for parameter in REQUIRED.values()} == {False, True}


@pytest.mark.parametrize("path", ALL)
def test_help_fits_a_narrow_terminal(path: str) -> None:
    """All but the examples, which are to be copied, and words that are longer than a line."""
    result = CliRunner().invoke(
        roots.root, [*path.split()[1:], "--help"], prog_name="pairbus", terminal_width=60
    )
    text = re.sub(r"^ *Examples?:\n(.+\n)*", "", result.output, flags=re.MULTILINE)

    assert [line for line in text.splitlines() if len(line) > 60 and len(line.split()) > 2] == []


def test_the_least_size_of_a_namespace_is_told_before_it_is_refused() -> None:
    found = CliRunner().invoke(roots.root, ["serve", "--store-max-mb", "63"])
    assert found.exit_code == 2
    assert "x>=64" in found.output
    assert re.search(
        r"--store-max-mb MB[^-]*x>=64", CliRunner().invoke(roots.root, ["serve", "--help"]).output
    )
