"""Texts on disk: against a plain list, through crashes, and with several processes at once."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from filelock import FileLock
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedec.drafters import store as store_module
from edgedec.drafters.contexts import Contexts
from edgedec.drafters.store import TAIL_LIMIT, Document, Store, stores
from edgedec.errors import EdgedecError, UsageError

posix = pytest.mark.skipif(os.name != "posix", reason="forks, kills, or looks at permissions")


def answer(tokens: list[int], owner: str = "") -> Document:
    return Document("answer", np.array(tokens, np.uint32), owner=owner)


def document(name: str, tokens: list[int]) -> Document:
    return Document("document", np.array(tokens, np.uint32), name)


def held(store: Store) -> list[tuple[str, str, list[int]]]:
    return [(d.kind, d.name, d.tokens.tolist()) for d in store.documents()]


def continuations(store: Store, tail: list[int]) -> list[int]:
    """What came after ``tail``, by searching all parts of the store."""
    store.refresh()
    found = []
    for part in store.contexts():
        for match in part.matches(tail):
            if match.length == len(tail):
                found += [part.next_token(position) for position in part.sample(match, 1000)]
    return found


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


tokens = st.lists(st.integers(0, 3), max_size=8)
operations = st.lists(
    st.one_of(
        st.tuples(st.just("append"), tokens, st.sampled_from(["", "a", "b"])),
        st.tuples(st.just("add"), st.lists(st.tuples(st.sampled_from("xyz"), tokens), min_size=1, max_size=3)),
        st.tuples(st.just("remove name"), st.sampled_from("xyz")),
        st.tuples(st.just("remove owner"), st.sampled_from(["a", "b"])),
        st.tuples(st.just("merge")),
        st.tuples(st.just("reopen")),
    ),
    max_size=12,
)


@settings(deadline=None, max_examples=60)
@given(operations)
def test_it_is_a_list_of_texts(done: list[tuple]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        written, watching = Store(Path(folder, "s")), Store(Path(folder, "s"))
        model: list[Document] = []
        for number, (what, *values) in enumerate(done):
            if what == "append":
                model.append(answer([*values[0], 10 + number], values[1]))  # the number: no two answers are the same
                written.append(model[-1])
            elif what == "add":
                new = {name: document(name, words) for name, words in values[0]}
                model = [d for d in model if d.name not in new] + list(new.values())
                written.add(list(new.values()))
            elif what.startswith("remove"):
                field = what.split()[1]
                gone = [d for d in model if getattr(d, field) == values[0]]
                model = [d for d in model if d not in gone]
                assert written.remove(lambda d, f=field, v=values[0]: getattr(d, f) == v) == gone
            elif what == "merge":
                written.merge(1)
                assert written.n_tail == 0
            else:
                written = Store(Path(folder, "s"))
            for seen in (written, watching):
                assert seen.documents() == model
                assert held(seen) == [(d.kind, d.name, d.tokens.tolist()) for d in model]
        whole = Contexts.of([d.tokens for d in model])
        for tail in ([0], [1, 2], [3, 3]):
            (full, *_) = [*[m for m in whole.matches(tail) if m.length == len(tail)], None]
            expected = [whole.next_token(p) for p in whole.sample(full, 1000)] if full else []
            assert sorted(continuations(watching, tail)) == sorted(expected)
        assert len(list(Path(folder).rglob("index-*"))) <= 1
        assert len(list(Path(folder).rglob("tail-*"))) <= 1


def test_labels_are_kept(store: Store) -> None:
    whole = Document("answer", np.array([1, 2], np.uint32), "name é", "owner", "model", 12345, "id")
    odd = document(os.fsdecode(b"/caf\xe9\n"), [4])
    store.append(whole)
    store.add([odd])
    store.append(answer([3]))
    for merged in (False, True):
        if merged:
            store.merge(1)
        first, second, third = Store(store.folder).documents()
        assert (first, second) == (whole, odd)
        assert third.tokens.dtype == np.uint32
    assert len({d.id for d in store.documents()}) == 3


def test_nothing_is_created_by_looking(store: Store) -> None:
    store.merge(1)
    assert (store.documents(), store.contexts(), store.n_bytes, store.remove(lambda _: True)) == ([], [], 0, [])
    assert not store.folder.exists()


def test_the_most_recent_comes_first(store: Store) -> None:
    for following in (4, 5):
        store.append(answer([1, 2, following]))
    store.merge(1)
    for following in (6, 7):
        store.append(answer([1, 2, following]))
        assert continuations(store, [1, 2]) == list(range(following, 3, -1))


def test_old_answers_leave_documents_stay(tmp_path: Path) -> None:
    small = Store(tmp_path / "s", limit=100)
    small.add([document("kept", [1] * 70)])
    for number in range(10):
        small.append(answer([number] * 10))
    assert len(small.documents()) == 11
    small.merge(1)
    assert held(small) == [("document", "kept", [1] * 70)] + [("answer", "", [n] * 10) for n in (7, 8, 9)]


def test_documents_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    small = Store(tmp_path / "s", limit=100)
    small.add([document("a", [1] * 70)])
    with pytest.raises(UsageError, match="80 tokens; 75 are possible"):
        small.add([document("b", [2] * 10)])
    small.add([document("a", [3] * 75)])
    assert held(small) == [("document", "a", [3] * 75)]


def test_answers_that_come_again_count_once(store: Store) -> None:
    store.add([document("a", [1, 2]), document("b", [1, 2])])
    for words in ([1, 2], [3], [1, 2]):
        store.append(answer(words))
    last = store.documents()[-1]
    store.merge(1)
    assert [d.tokens.tolist() for d in store.documents()] == [[1, 2], [1, 2], [3], [1, 2]]
    assert store.documents()[-1] == last


def test_a_long_tail_is_merged(store: Store) -> None:
    store.append(answer(list(range(TAIL_LIMIT - 1))))
    store.merge()
    assert store.n_tail == TAIL_LIMIT - 1
    store.append(answer([5]))
    store.merge()
    assert (store.n_tail, len(store.documents())) == (0, 2)


def test_what_is_removed_is_in_no_file(store: Store) -> None:
    secret = [1001, 1002, 1003]
    store.add([document("secret name", secret), document("other", [1])])
    store.append(answer(secret, "secret owner"))
    assert len(store.remove(lambda d: "secret" in d.name + d.owner)) == 2
    everything = b"".join(path.read_bytes() for path in store.folder.iterdir())
    for order in ("<", ">"):
        assert np.array(secret[:1], f"{order}u4").tobytes() not in everything
    assert b"secret" not in everything
    assert held(store) == [("document", "other", [1])]
    assert store.remove(lambda d: True)
    assert Store(store.folder).documents() == []
    store.append(answer([8]))
    assert held(store) == [("answer", "", [8])]


@posix
def test_files_are_the_users_own(store: Store) -> None:
    store.add([document("a", [1])])
    store.append(answer([2]))
    for path in (store.folder, *store.folder.iterdir()):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path


# ---- crashes and damage


def test_a_torn_record_is_cut_off(store: Store) -> None:
    store.append(answer([1, 2, 3]))
    tail = store.folder / "tail-0"
    first = tail.read_bytes()
    store.append(answer([4, 5, 6]))
    whole = tail.read_bytes()
    for n in range(len(first), len(whole)):
        tail.write_bytes(whole[:n])
        assert held(Store(store.folder)) == [("answer", "", [1, 2, 3])]
        reopened = Store(store.folder)
        reopened.append(answer([n]))
        assert held(Store(store.folder)) == held(reopened) == [("answer", "", [1, 2, 3]), ("answer", "", [n])]
        assert tail.stat().st_size == len(whole) - 2 * 4, "nothing is left of the torn record"


@settings(deadline=None, max_examples=50)
@given(st.data())
def test_a_damaged_record_is_not_believed(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder))
        store.append(answer([1, 2, 3]))
        n_first = Path(folder, "tail-0").stat().st_size
        store.append(answer([4, 5, 6]))
        content = bytearray(Path(folder, "tail-0").read_bytes())
        content[data.draw(st.integers(n_first, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        Path(folder, "tail-0").write_bytes(content)
        assert held(Store(Path(folder))) == [("answer", "", [1, 2, 3])]


@settings(deadline=None, max_examples=50)
@given(st.data())
def test_a_damaged_index_is_refused(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Store(Path(folder)).add([document("a", [1, 2, 3])])
        path = Path(folder, "index-1")
        content = bytearray(path.read_bytes())
        if data.draw(st.booleans()):
            content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        else:
            del content[data.draw(st.integers(0, len(content) - 1)) :]
        path.write_bytes(content)
        for use in (Store.refresh, Store.documents, lambda store: store.append(answer([4]))):
            with pytest.raises(EdgedecError) as caught:
                use(Store(Path(folder)))
            assert folder in str(caught.value)
            assert "elete" in caught.value.hint
        assert path.read_bytes() == content, "what may be worth something stays"


@pytest.mark.parametrize("failing", ["os.fsync", "os.replace"])
def test_a_failing_disk_changes_nothing(store: Store, monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    store.add([document("a", [1])])
    store.append(answer([2]))
    before = held(store)
    actions: list[Callable[[], object]] = [
        lambda: store.add([document("b", [3])]),
        lambda: store.remove(lambda d: True),
        lambda: store.merge(1),
    ]
    monkeypatch.setattr(failing, fail)
    for action in actions:
        with pytest.raises(OSError, match="No space"):
            action()
        assert held(Store(store.folder)) == held(store) == before
    assert sorted(path.name for path in store.folder.iterdir()) == ["index-1", "lock", "tail-1"]


def test_leftovers_of_a_crash_are_swept_away(store: Store) -> None:
    store.append(answer([1]))
    old = (store.folder / "tail-0").read_bytes()
    store.merge(1)
    (store.folder / "tail-0").write_bytes(old)
    (store.folder / "half.tmp").write_bytes(b"half an index")
    assert held(Store(store.folder)) == [("answer", "", [1])]
    Store(store.folder).append(answer([2]))
    assert sorted(path.name for path in store.folder.iterdir()) == ["index-1", "lock", "tail-1"]


def test_a_file_that_vanishes_while_it_is_opened(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.add([document("a", [1])])
    newest = Store._newest
    answers = iter([7, 7])
    reader = Store(store.folder)
    monkeypatch.setattr(Store, "_newest", lambda self: next(answers, None) or newest(self))
    assert held(reader) == [("document", "a", [1])]
    answers = iter([7, 7, 7])
    with pytest.raises(FileNotFoundError):
        Store(store.folder).refresh()


def test_other_files_do_not_disturb(store: Store) -> None:
    store.append(answer([1]))
    for name in ("index-", "index-x", "tail", "tail-1x", "notes-9", "index-3.old"):
        (store.folder / name).write_bytes(b"?")
    assert held(Store(store.folder)) == [("answer", "", [1])]


def test_an_index_of_another_version(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "_LAYOUT", 2)
    store.add([document("a", [1])])
    monkeypatch.undo()
    with pytest.raises(EdgedecError, match="another version"):
        Store(store.folder).refresh()


def test_a_lock_that_stays_taken(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.append(answer([1]))
    monkeypatch.setattr(store_module, "_LOCK_SECONDS", 0.0)
    with FileLock(store.folder / "lock"):
        assert held(Store(store.folder)) == [("answer", "", [1])], "readers need no lock"
        with pytest.raises(EdgedecError, match="Another process"):
            store.append(answer([2]))
    store.append(answer([3]))
    assert held(store) == [("answer", "", [1]), ("answer", "", [3])]


_WRITER = """
import json, os, random, signal, sys
from pathlib import Path
import numpy as np
from edgedec.drafters.store import Document, Store

folder = Path(sys.argv[1])

def text(number):
    return np.array([number, *range(number % 50)], np.uint32)

def write(first, n, out):
    store = Store(folder)
    for number in range(first, first + n):
        if number % 5:
            store.append(Document("answer", text(number)))
        else:
            store.add([Document("document", text(number), str(number))])
        os.write(out, b"%d\\n" % number)
        if number % 7 == 0:
            store.merge(1)
        if number % 11 == 0:
            store.remove(lambda d: d.tokens[0] == number)

def start(first, n):
    read, write_to = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            write(first, n, write_to)
        finally:
            os._exit(0)
    os.close(write_to)
    return child, os.fdopen(read)
"""


def run(script: str, folder: Path, *args: str) -> list[int]:
    """The numbers of all texts that were acknowledged."""
    done = subprocess.run(
        [sys.executable, "-c", _WRITER + script, str(folder), *args], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    found: list[int] = json.loads(done.stdout)
    return found


def check_numbers(folder: Path, acknowledged: list[int], n_unsure: int) -> None:
    """All of them are there and whole, but for those that are removed again."""
    found = Store(folder).documents()
    assert all(d.tokens.tolist() == [d.tokens[0], *range(d.tokens[0] % 50)] for d in found)
    numbers = {int(d.tokens[0]) for d in found}
    assert len(numbers) == len(found)
    assert {n for n in acknowledged if n % 11} <= numbers
    assert len(numbers - set(acknowledged)) <= n_unsure


@posix
def test_killed_at_any_moment(tmp_path: Path) -> None:
    n_kills = 25
    acknowledged = run(
        """
chance = random.Random(1)
acknowledged = []
for kill in range(int(sys.argv[2])):
    child, out = start(1000 * kill + 1, 1000)
    for _ in range(chance.randint(1, 12)):
        acknowledged.append(int(out.readline()))
    for _ in range(chance.randint(0, 20_000)):
        pass
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    acknowledged += [int(line) for line in out]
    seen = {int(d.tokens[0]) for d in Store(folder).documents()}
    assert {n for n in acknowledged if n % 11} <= seen, kill
print(json.dumps(acknowledged))
""",
        tmp_path,
        str(n_kills),
    )
    assert len(acknowledged) >= n_kills
    check_numbers(tmp_path, acknowledged, n_unsure=n_kills)


@posix
def test_several_processes_write_and_one_reads(tmp_path: Path) -> None:
    acknowledged = run(
        """
children = [start(1000 * (i + 1), 60) for i in range(2)]
reader, acknowledged, seen = Store(folder), [], set()
for child, out in children:
    for line in out:
        acknowledged.append(int(line))
        now = {int(d.tokens[0]) for d in reader.documents()}
        assert {n for n in acknowledged if n % 11} <= now and {n for n in seen if n % 11} <= now
        seen = now
    assert os.waitpid(child, 0)[1] == 0
print(json.dumps(acknowledged))
""",
        tmp_path,
    )
    assert len(acknowledged) == 120
    check_numbers(tmp_path, acknowledged, n_unsure=0)


def test_all_stores_of_a_folder(tmp_path: Path) -> None:
    assert stores(tmp_path / "missing") == []
    for name, words in (("b", [1]), ("a", [2])):
        Store(tmp_path / name).append(answer(words))
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    assert [store.folder.name for store in stores(tmp_path)] == ["a", "b"]
