"""Write the pages of docs/reference that say what the code says: errors, commands, metrics, the Python interface.

`make docs` runs it; a test holds the pages to it.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import click

from pairbus import errors
from pairbus.cli.root import root
from pairbus.local.management import ManagementClient
from pairbus.pairing import errors as pairing_errors
from pairbus.server.cluster.metrics import CLUSTER_METRICS
from pairbus.spark.connector.options import OPTIONS, Option
from pairbus.testing import Namespace
from tools.python_reference import python_page

FOLDER: Final = Path(__file__).resolve().parent.parent / "docs" / "reference"

ERRORS_HEAD: Final = """# Errors

All errors that PairBus raises on purpose derive from `PairbusError`. `pairbus` exports those of the paired client; `pairbus.errors` contains all of them. Errors that a program of
the official SDK catches also derive from the SDK's classes, so `except ServiceBusError` still works. The text of each error contains the wrong value and, if possible, what
to do. Errors can be pickled. `tools/reference.py` writes this page.

| error | is a | meaning |
|---|---|---|
"""

REFUSALS_HEAD: Final = """
## Refusals

A [refusal](../glossary.md#refusal): the broker understood the request and refused it. Nothing has changed. On a link the condition is in the `error` of a rejected disposition or a
detach; on `$management` the number is the status code of the answer.

| refusal | condition | number | retry can help | meaning |
|---|---|---|---|---|
"""

COMMANDS_HEAD: Final = """# Commands

`tools/reference.py` writes this page from the help texts. `-h` and `--help` work with every command; `pairbus --version` prints the version.

Exit codes of every command: 0 done, 1 the answer is no, 2 wrong usage, 3 the command could not reach the namespace or was refused, 130 ended by Ctrl-C, 141 the reader of its
output has gone, as with `| head`. `pairbus serve` also has 4: another [node](../glossary.md#node) took the namespace. Commands that run until they are stopped, such as `pairbus serve`, end with 0 at Ctrl-C.

Connection strings come from the environment (`PAIRBUS_PRIMARY`, `PAIRBUS_SECONDARY`) or from files that the environment names (`PAIRBUS_PRIMARY_FILE`,
`PAIRBUS_SECONDARY_FILE`).

The [ready file](../glossary.md#ready-file) of `pairbus serve` is one JSON object: `namespace`, `pid`, `amqp` and `http` (`host:port`), `connection_string` (with the root key; for loopback with
`UseDevelopmentEmulator=true`) and `ca_file` (the authority to trust; null if you use your own certificate). The file appears, complete and with mode 0600, when the broker
serves the namespace. Every broker keeps one as `ready.json` in its data directory, also after it has stopped. `--ready-file` names a second one.
"""

METRICS_HEAD: Final = """# Metrics

`GET /metrics` works on both addresses and needs a token with a right on the [namespace](../glossary.md#namespace). The answer is in Prometheus' text format. It contains no keys, tokens
or bodies. `tools/reference.py` writes this page from a broker that has just started; some labels appear only with traffic.

| metric | kind | labels | meaning |
|---|---|---|---|
"""

CLUSTER_HEAD: Final = """
## Of a node of a cluster

A [node](../glossary.md#node) has these too. `GET /health/metrics` gives them on every node, in plain text and without a token; `GET /metrics` gives those of the
[owner](../glossary.md#owner), wherever the request arrives, because other nodes relay it.

| metric | kind | labels | meaning |
|---|---|---|---|
"""

SPARK_HEAD: Final = """# Options of `format("servicebus")`

Letter case does not matter in names. A wrong name or value fails before any message is read or sent, and the error says what is allowed.
`tools/reference.py` writes this page.

| option | of | values | default | meaning |
|---|---|---|---|---|
"""

ERRORS_END: Final = """
Next: the [options](options.md) of a paired client, and [compatibility](../compatibility.md) with Service Bus.
"""
COMMANDS_END: Final = """
Next: [use the command line](../how-to/use-the-command-line.md), and the [glossary](../glossary.md).
"""
SPARK_END: Final = """
Next: [Spark pipelines](../how-to/spark.md).
"""
METRICS_END: Final = """
Next: [operations](../operations.md), and the [metrics of a paired client](pairing-metrics.md).
"""


def errors_page() -> str:
    """All errors, by the classes themselves."""
    kinds = [
        kind
        for kind in (*vars(errors).values(), *vars(pairing_errors).values())
        if inspect.isclass(kind) and issubclass(kind, errors.PairbusError)
    ]
    kinds = list(dict.fromkeys(kinds))
    plain = [kind for kind in kinds if not issubclass(kind, errors.Refusal) or kind is errors.Refusal]
    refusals = [kind for kind in kinds if issubclass(kind, errors.Refusal) and kind is not errors.Refusal]
    lines = (*map(_error_line, plain), REFUSALS_HEAD, *map(_refusal_line, refusals))
    return ERRORS_HEAD + "".join(lines) + ERRORS_END


def _error_line(kind: type[errors.PairbusError]) -> str:
    bases = ", ".join(f"`{base.__name__}`" for base in kind.__bases__)
    return f"| `{kind.__name__}` | {bases} | {_meaning(kind)} |\n"


def _refusal_line(kind: type[errors.Refusal]) -> str:
    again = "yes" if kind.retryable else "no"
    return f"| `{kind.__name__}` | `{kind.condition}` | {kind.status} | {again} | {_meaning(kind)} |\n"


def _meaning(kind: type[errors.PairbusError]) -> str:
    """The first paragraph of the docstring, on one line, in the page's quotes."""
    first = inspect.cleandoc(kind.__doc__ or "").split("\n\n", 1)[0]
    return _cell(first.replace("``", "`"))


def commands_page() -> str:
    """All commands, with their help texts."""
    with click.Context(root, info_name="pairbus") as context:
        return COMMANDS_HEAD + "".join(_commands_of(root, context, 2)) + COMMANDS_END


def _commands_of(group: click.Group, context: click.Context, level: int) -> list[str]:
    parts = []
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None, name
        with click.Context(command, info_name=name, parent=context) as inner:
            parts.append(_command(command, inner, level))
            if isinstance(command, click.Group):
                parts += _commands_of(command, inner, level + 1)
    return parts


def _command(command: click.Command, context: click.Context, level: int) -> str:
    arguments = [param.make_metavar(context) for param in command.params if isinstance(param, click.Argument)]
    title = " ".join([context.command_path, *arguments])
    text = f"\n{'#' * level} `{title}`\n\n{inspect.cleandoc(command.help or '')}\n"
    options = [param for param in command.params if isinstance(param, click.Option)]
    if options:
        lines = "".join(f"| {_names(option, context)} | {_help(option, context)} |\n" for option in options)
        text += f"\n| option | meaning |\n|---|---|\n{lines}"
    if command.epilog:
        # click's mark for a paragraph that keeps its lines is a backspace on a line of its own.
        epilog = inspect.cleandoc(command.epilog.replace("\b\n", ""))
        text += f"\n```text\n{epilog.strip()}\n```\n"
    return text


def _names(option: click.Option, context: click.Context) -> str:
    metavar = "" if option.is_flag else f" {option.make_metavar(context)}"
    return ", ".join(f"`{_cell(name + metavar)}`" for name in (*option.opts, *option.secondary_opts))


def _help(option: click.Option, context: click.Context) -> str:
    record = option.get_help_record(context)
    return _cell(record[1] if record else "")


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def metrics_page() -> str:
    """All metrics, by a broker that serves them."""
    with Namespace("reference", queues=["orders"], config={"Topics": [{"Name": "events"}]}) as namespace:
        management = ManagementClient(namespace.http_address, namespace.connection_string)
        text = management.request("GET", "/metrics").decode()
    kinds = dict(re.findall(r"^# TYPE (\w+) (\w+)$", text, re.MULTILINE))
    meanings = dict(re.findall(r"^# HELP (\w+) (.*)$", text, re.MULTILINE))
    lines = []
    for name, kind in kinds.items():
        samples = re.findall(rf"^{name}(?:_bucket)?\{{(.*)\}} ", text, re.MULTILINE)
        labels = dict.fromkeys(label for sample in samples for label in re.findall(r'(\w+)="', sample))
        lines.append(_metric_line(name, kind, labels, meanings[name]))
    of_a_node = (
        _metric_line(name, kind, labels, meaning) for name, (kind, meaning, labels) in CLUSTER_METRICS.items()
    )
    return METRICS_HEAD + "".join(lines) + CLUSTER_HEAD + "".join(of_a_node) + METRICS_END


def _metric_line(name: str, kind: str, labels: Iterable[str], meaning: str) -> str:
    quoted = ", ".join(f"`{label}`" for label in labels)
    return f"| `{name}` | {kind} | {quoted} | {_cell(meaning)} |\n"


def spark_options_page() -> str:
    """All options of the Spark source and sink, by the table that reads them."""
    return SPARK_HEAD + "".join(map(_spark_option, OPTIONS)) + SPARK_END


def _spark_option(option: Option) -> str:
    values = ", ".join(f"`{choice}`" for choice in option.choices) or "text"
    if option.range != (0, 0):
        values = f"{option.range[0]:,} to {option.range[1]:,}"
    default = f"`{option.default}`" if isinstance(option.default, str) else f"{option.default:,}"
    cells = (
        f"`{option.name}`",
        ", ".join(option.sides),
        values,
        default if option.default else "",
        option.help,
    )
    return f"| {' | '.join(cells)} |\n"


PAGES: Final[dict[str, Callable[[], str]]] = {
    "errors.md": errors_page,
    "commands.md": commands_page,
    "metrics.md": metrics_page,
    "spark-options.md": spark_options_page,
    "python.md": python_page,
}

if __name__ == "__main__":
    for name, write in PAGES.items():
        (FOLDER / name).write_text(write())
