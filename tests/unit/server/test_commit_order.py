"""Words of one connection are said in the order they were spoken, whatever they rest on."""

from __future__ import annotations

from pairbus.server.committer import CommitQueue, PendingOutput
from pairbus.storage.memory import MemoryBatch


class Ear:
    """Hears what is said."""

    def __init__(self) -> None:
        self.heard: list[bytes] = []

    def write(self, chunks: list[bytes], closes: bool) -> None:
        self.heard += chunks


def test_words_that_rest_on_no_batch_wait_for_those_of_the_commit_before() -> None:
    ear = Ear()
    words: list[bytes] = [b"first"]
    staged = [MemoryBatch([b"record"], 1)]

    def collect() -> list[PendingOutput]:
        taken = [PendingOutput(ear, [word], closes=False) for word in words]
        words.clear()
        return taken

    queue = CommitQueue(collect, lambda: staged.pop() if staged else None)
    commit, said = queue.proceed([])
    assert commit is not None
    assert said == []
    words.append(b"second")  # a delivery, which changes no record
    assert queue.proceed([]) == (None, [])

    following, said = queue.proceed(queue.finish(commit))

    assert following is None
    for output in said:
        output.sink.write(output.chunks, output.closes)
    assert ear.heard == [b"first", b"second"]
