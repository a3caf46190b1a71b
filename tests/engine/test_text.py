"""TextStream against the obvious computation on the whole text, for any way of cutting it into pieces."""

from __future__ import annotations

import codecs
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedec.engine.text import TextStream

LETTERS = "abé€😀"


def feed(stop: list[str], pieces: list[bytes]) -> tuple[list[str], TextStream]:
    stream = TextStream(stop)
    shown = [stream.push(piece) for piece in pieces]
    shown.append(stream.flush())
    return shown, stream


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


def until_stop(text: str, stop: list[str]) -> tuple[str, bool]:
    """The rule, spelled out: read character by character; the first complete stop string ends the text before it."""
    for end in range(1, len(text) + 1):
        complete = [len(word) for word in stop if text[:end].endswith(word)]
        if complete:
            return text[: end - max(complete)], True
    return text, False


def without_possible_start(text: str, stop: list[str]) -> str:
    """``text`` without the longest end that begins a stop string."""
    for begin in range(len(text)):
        if any(len(word) > len(text) - begin and word.startswith(text[begin:]) for word in stop):
            return text[:begin]
    return text


stops = st.lists(st.text(LETTERS, min_size=1, max_size=5), max_size=4)
valid = st.text(LETTERS, max_size=30).map(str.encode)
broken = st.lists(
    st.sampled_from([b"a", b"b", "é".encode(), "😀".encode(), b"\xf0\x9f", b"\x98", b"\xed\xa0", b"\xff", b"\xe2\x82"]),
    max_size=20,
).map(b"".join)


@given(data=valid | broken | st.binary(max_size=30), stop=stops, places=st.lists(st.integers(0, 200), max_size=12))
@settings(deadline=None, max_examples=500)
def test_any_cut_gives_the_text_before_the_first_stop(data: bytes, stop: list[str], places: list[int]) -> None:
    shown, stream = feed(stop, cut(data, places))
    expected, stopped = until_stop(data.decode("utf-8", "replace"), stop)
    assert "".join(shown) == stream.text == expected
    assert stream.stopped is stopped


@given(data=valid | broken, stop=stops, places=st.lists(st.integers(0, 200), max_size=12))
@settings(deadline=None, max_examples=300)
def test_all_that_is_safe_is_shown_at_once(data: bytes, stop: list[str], places: list[int]) -> None:
    stream, decoder, arrived = TextStream(stop), codecs.getincrementaldecoder("utf-8")("replace"), ""
    for piece in cut(data, places):
        stream.push(piece)
        arrived += decoder.decode(piece)
        text, stopped = until_stop(arrived, stop)
        assert stream.text == (text if stopped else without_possible_start(text, stop))
        assert stream.stopped is stopped


@pytest.mark.parametrize(
    ("stop", "pieces", "shown"),
    [
        pytest.param([], ["ab", "c"], ["ab", "c", ""], id="no stop strings"),
        pytest.param(["x"], ["axb"], ["a", ""], id="inside one token"),
        pytest.param(["END"], ["ok E", "N", "D rest", "more"], ["ok ", "", "", "", ""], id="across tokens"),
        pytest.param(["END"], ["ok E", "N", "d"], ["ok ", "", "ENd", ""], id="not the stop after all"),
        pytest.param(["END"], ["ok EN"], ["ok ", "EN"], id="unfinished at the end"),
        pytest.param(["aab"], ["aa", "ab", "c"], ["", "a", "", ""], id="overlaps itself"),
        pytest.param(["abcd", "bc"], ["ab", "cd"], ["", "a", ""], id="first complete wins over first begun"),
        pytest.param(["b", "ab"], ["xa", "b"], ["x", "", ""], id="complete together: the longest"),
        pytest.param(["ab", "abc"], ["abc"], ["", ""], id="a stop string that begins another"),
        pytest.param(["é!"], ["caf", "é", "!"], ["caf", "", "", ""], id="not ASCII"),
        pytest.param(["s"], ["s"], ["", ""], id="nothing but the stop"),
    ],
)
def test_stop_strings(stop: list[str], pieces: list[str], shown: list[str]) -> None:
    assert feed(stop, [piece.encode() for piece in pieces])[0] == shown


def test_a_character_is_shown_when_it_is_complete() -> None:
    stream = TextStream([])
    assert [stream.push(bytes([byte])) for byte in "é😀".encode()] == ["", "é", "", "", "", "😀"]


def test_invalid_bytes_are_replaced_where_they_stand_and_at_the_end() -> None:
    shown, _ = feed([], [b"a\xe2\x82", b"b\xff", b"\xf0\x9f\x98"])
    assert shown == ["a", "�b�", "", "�"]


def test_a_stop_string_is_found_after_invalid_bytes() -> None:
    shown, stream = feed(["ab"], [b"\xe2", b"a", b"b"])
    assert shown == ["", "�", "", ""]
    assert stream.stopped


def test_nothing_follows_a_stop() -> None:
    stream = TextStream(["."])
    assert stream.push(b"One. Two") == "One"
    assert stream.stopped
    assert stream.push(b" Three.") == ""
    assert stream.flush() == ""
    assert stream.text == "One"


def test_a_second_flush_shows_nothing() -> None:
    stream = TextStream(["ab"])
    stream.push(b"xa")
    assert stream.flush() == "a"
    assert stream.flush() == ""
    assert stream.text == "xa"


def test_what_a_flush_has_shown_is_not_part_of_a_later_stop() -> None:
    stream = TextStream(["ab"])
    assert [stream.push(b"a"), stream.flush(), stream.push(b"b"), stream.push(b"ab")] == ["", "a", "b", ""]
    assert stream.stopped
