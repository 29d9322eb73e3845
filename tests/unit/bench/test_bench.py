"""Two benchmarks: their bounds and tools; and the door `pairbus bench`, which needs a clone."""

from __future__ import annotations

import asyncio
import subprocess
import time
from typing import Any

import pytest

from bench.far import LatencyProxy
from bench.pairing import Drain, Healthy, Pairing, Rates, Reaction, Spool
from bench.settle import ONE_BY_ONE_S_MIN, Settle, judged
from pairbus.cli import bench as door
from pairbus.cli import main


@pytest.mark.parametrize(
    ("alone", "some", "every", "kept"),
    [
        (8.5, 0.9, 0.1, [True, True, True]),
        (7.9, 0.9, 0.1, [False, True, True]),
        (8.5, 8.6, 0.1, [True, False, True]),
        (8.5, 0.9, 1.0, [True, False, False]),
    ],
)
def test_a_figure_that_cannot_be_is_an_error(
    alone: float, some: float, every: float, kept: list[bool]
) -> None:
    figures = judged(alone, some, every)

    assert [figure.is_kept for figure in figures] == kept
    result = Settle(messages=100, round_trip_ms=70, store_ms=10, figures=figures)
    assert result.holds == all(kept)
    assert ("NOT SO" in "\n".join(result.lines())) != all(kept)


def test_settling_one_by_one_must_take_eight_seconds() -> None:
    assert pytest.approx(8.0) == ONE_BY_ONE_S_MIN


async def test_the_proxy_adds_its_distance_and_changes_nothing() -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readexactly(5))
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(echo, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        proxy = LatencyProxy("127.0.0.1", port, there_s=0.05, back_s=0.05)
        reader, writer = await asyncio.open_connection("127.0.0.1", await proxy.start())
        begun = time.monotonic()
        writer.write(b"hello")
        assert await reader.read() == b"hello"
        assert time.monotonic() - begun >= 0.1
        writer.close()
        proxy.stop()


def test_figures_of_pairing_name_their_targets() -> None:
    result = Pairing(
        Healthy(1.0, 1.01, 1.01, 1.0),
        Healthy(1.0, 1.015, 1.015, 1.0),
        Healthy(1.0, 0.6, 0.6, 1.0),
        Drain(100, 90, 0.9),
        Reaction(1.5, 0.5, 1.2, 0.2),
        Spool(Rates(1_500, 2_000, 2_500), Rates(300, 3_000, 10_500), 7.0, Rates(0.2, 1.5, 4.2)),
    )

    assert "ratio 1.010 (target <= 1.02; plain beside plain 1.000)" in result.lines()[0]
    assert "one coroutine: plain SDK 1.000 ms, paired 1.015 ms, ratio 1.015" in result.lines()[1]
    assert "100 coroutines: plain SDK 1.000 ms, paired 0.600 ms, ratio 0.600" in result.lines()[2]
    assert "ratio 7.0 (target >= 5)" in result.lines()[-1]
    assert "one 300/s and 1500/s, ratio 0.2" in result.lines()[-1]


def test_every_command_has_a_benchmark_in_the_clone() -> None:
    root = door.clone_root()

    assert root is not None
    assert {file.stem for file in (root / door.FOLDER).glob("*.py")} >= set(door.BENCHMARKS)
    assert set(door.bench.commands) == set(door.BENCHMARKS)


@pytest.mark.parametrize("name", door.BENCHMARKS)
def test_without_a_clone_one_line_says_how_to_get_one(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(door, "clone_root", lambda: None)

    with pytest.raises(SystemExit) as ended:
        main(["bench", name])

    assert ended.value.code == 3
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.count("\n") == 1
    assert "clone the repository" in output.err


def test_options_reach_the_benchmark_of_a_clone(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[list[str]] = []

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[bytes]:
        ran.append(command[1:])
        return subprocess.CompletedProcess(command, 1)

    monkeypatch.setattr(subprocess, "run", run)
    for arguments in (["broker", "--quick", "--only", "ours", "--json"], ["spark", "--messages", "100"]):
        with pytest.raises(SystemExit) as ended:
            main(["bench", *arguments])
        assert ended.value.code == 1, "its exit code is ours"

    assert ran == [
        ["-m", "bench.broker", "--quick", "--only", "ours", "--json"],
        ["-m", "bench.spark", "--messages", "100"],
    ]
