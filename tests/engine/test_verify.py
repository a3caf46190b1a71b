"""The walk against a naive reading of its definition, and the law of what it emits."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedec.engine.sampling import Sampler
from edgedec.engine.verify import ROOT, TokenChooser, walk
from edgedec.types import Draft, SamplingParams, Verdict

NOBODY: frozenset[int] = frozenset()


def draft_of(tokens: Sequence[int], parents: Sequence[int] | None = None) -> Draft:
    """A chain, unless parents are given."""
    n = len(tokens)
    return Draft(tuple(tokens), tuple(range(-1, n - 1) if parents is None else parents), ("a",) * n, (0.5,) * n)


class Planned:
    """A chooser that says a fixed text, and keeps what it was asked."""

    def __init__(self, text: Sequence[int]) -> None:
        self.text = text
        self.positions: list[int] = []
        self.accepted: list[int] = []
        self.rows: list[float] = []

    def sample(self, logits: np.ndarray, position: int) -> int:
        self.positions.append(position)
        self.rows.append(float(logits[0]))
        return self.text[len(self.accepted)]

    def accept(self, token: int) -> None:
        self.accepted.append(token)


def say(
    text: Sequence[int], draft: Draft, max_tokens: int = 99, end_ids: frozenset[int] = NOBODY
) -> tuple[Verdict, Planned]:
    """The row of node i holds the number i."""
    chooser = Planned(text)
    verdict = walk(draft, lambda node: np.array([node], np.float32), chooser, 100, max_tokens, end_ids)
    assert chooser.accepted == list(verdict.tokens)
    assert chooser.positions == list(range(100, 100 + len(verdict.tokens)))
    assert chooser.rows == [ROOT, *verdict.path][: len(verdict.tokens)]
    return verdict, chooser


TREE = draft_of([5, 6, 7, 8, 7, 9], [-1, -1, 0, 2, 1, 4])  # 5 7 8 and 6 7 9


@pytest.mark.parametrize(
    ("draft", "text", "tokens", "path"),
    [
        (draft_of([]), [5, 6], (5,), ()),
        (draft_of([5, 6, 7]), [4, 6, 7, 8], (4,), ()),
        (draft_of([5, 6, 7]), [5, 4, 7, 8], (5, 4), (0,)),
        (draft_of([5, 6, 7]), [5, 6, 7, 8, 9], (5, 6, 7, 8), (0, 1, 2)),
        (draft_of([5, 5, 5]), [5, 5, 4], (5, 5, 4), (0, 1)),  # equal tokens on different levels
        (TREE, [5, 7, 8, 1], (5, 7, 8, 1), (0, 2, 3)),
        (TREE, [6, 7, 8, 1], (6, 7, 8), (1, 4)),  # 8 stands behind the other 7
        (TREE, [6, 7, 9, 1], (6, 7, 9, 1), (1, 4, 5)),
        (TREE, [7, 7, 9, 1], (7,), ()),  # 7 is no child of the root
    ],
)
def test_chains_and_trees(draft: Draft, text: list[int], tokens: tuple[int, ...], path: tuple[int, ...]) -> None:
    verdict, _ = say(text, draft)
    assert (verdict.tokens, verdict.path, verdict.n_accepted) == (tokens, path, len(path))


def test_nothing_follows_an_end_token() -> None:
    ends = frozenset({2, 3})
    inside, _ = say([5, 2, 7, 8], draft_of([5, 2, 7]), end_ids=ends)
    assert (inside.tokens, inside.path) == ((5, 2), (0, 1))
    unforeseen, _ = say([5, 3, 7, 8], draft_of([5, 6, 7]), end_ids=ends)
    assert (unforeseen.tokens, unforeseen.path) == ((5, 3), (0,))
    bonus, _ = say([5, 2], draft_of([5]), end_ids=ends)
    assert (bonus.tokens, bonus.path) == ((5, 2), (0,))


@pytest.mark.parametrize("limit", range(1, 6))
def test_the_limit(limit: int) -> None:
    """Reached on the path, at its end, after it, and never."""
    verdict, _ = say([5, 6, 7, 8], draft_of([5, 6, 7]), max_tokens=limit)
    assert verdict.tokens == (5, 6, 7, 8)[:limit]
    assert verdict.path == (0, 1, 2)[:limit]


@st.composite
def trees(draw: st.DrawFn, n_vocab: int = 4) -> Draft:
    """Up to 12 nodes, parents first, siblings different."""
    tokens: list[int] = []
    parents: list[int] = []
    for _ in range(draw(st.integers(0, 12))):
        parent, token = draw(st.integers(-1, len(tokens) - 1)), draw(st.integers(0, n_vocab - 1))
        if (parent, token) not in zip(parents, tokens, strict=True):
            tokens.append(token)
            parents.append(parent)
    return draft_of(tokens, parents)


@settings(deadline=None)
@given(
    draft=trees(),
    text=st.lists(st.integers(0, 3), min_size=14, max_size=14),
    limit=st.integers(1, 14),
    ends=st.frozensets(st.integers(0, 3), max_size=2),
)
def test_against_the_definition(draft: Draft, text: list[int], limit: int, ends: frozenset[int]) -> None:
    """What is emitted is the beginning of what would be said anyway: as far as it stands in the tree, and one more."""
    branches = {(): ROOT}
    for i, (token, parent) in enumerate(zip(draft.tokens, draft.parents, strict=True)):
        (above,) = [branch for branch, node in branches.items() if node == parent]
        branches[(*above, token)] = i
    n = 1
    while tuple(text[:n]) in branches and text[n - 1] not in ends and n < limit:
        n += 1
    verdict, _ = say(text, draft, limit, ends)
    assert list(verdict.tokens) == text[:n]
    assert list(verdict.path) == [branches[tuple(text[:k])] for k in range(1, n + 1) if tuple(text[:k]) in branches]


# The law of what is emitted

N_VOCAB = 4
N_TOKENS = 3
Row = Callable[[tuple[int, ...]], np.ndarray]


def row_after(said: tuple[int, ...]) -> np.ndarray:
    """A fixed distribution for each text: the target."""
    return np.random.default_rng([3, *said]).normal(size=N_VOCAB).astype(np.float32) * 1.5


ROWS = {said: row_after(said) for n in range(N_TOKENS) for said in np.ndindex(*(N_VOCAB,) * n)}


def random_tree(rng: np.random.Generator) -> Draft:
    """Depth-first; on the average every second token is a child."""
    tokens: list[int] = []
    parents: list[int] = []
    queue = [(ROOT, 0)]
    for node, depth in queue:
        if depth < N_TOKENS:
            for token in rng.permutation(N_VOCAB)[: rng.integers(0, 3)]:
                queue.append((len(tokens), depth + 1))
                tokens.append(int(token))
                parents.append(node)
    return draft_of(tokens, parents)


def generate(make: Callable[[], TokenChooser], position: int, rng: np.random.Generator | None) -> tuple[int, ...]:
    """``N_TOKENS`` tokens by as many walks as it takes, plainly without ``rng``."""
    said: tuple[int, ...] = ()
    chooser = make()
    while len(said) < N_TOKENS:
        draft = random_tree(rng) if rng is not None else Draft()
        texts = {ROOT: said}
        for i, (token, parent) in enumerate(zip(draft.tokens, draft.parents, strict=True)):
            texts[i] = (*texts[parent], token)
        rows = {node: ROWS[text] for node, text in texts.items() if len(text) < N_TOKENS}
        verdict = walk(draft, rows.__getitem__, chooser, position + len(said), N_TOKENS - len(said), NOBODY)
        said += verdict.tokens
    return said


def law(temperature: float) -> dict[tuple[int, ...], float]:
    """Probability of each text of ``N_TOKENS`` tokens."""
    found = {}
    for said in np.ndindex(*(N_VOCAB,) * N_TOKENS):
        p = 1.0
        for i, token in enumerate(said):
            weights = np.exp(ROWS[said[:i]].astype(float) / temperature)
            p *= float(weights[token] / weights.sum())
        found[said] = p
    return found


def excess(seen: Counter[tuple[int, ...]], expected: dict[tuple[int, ...], float]) -> float:
    """Chi-square in standard deviations above its mean; texts that are expected fewer than 5 times count as one."""
    n = seen.total()
    cells = [(seen[said], n * p) for said, p in expected.items() if n * p >= 5]
    cells.append((n - sum(k for k, _ in cells), n - sum(e for _, e in cells)))
    chi2 = math.fsum((k - e) ** 2 / e for k, e in cells)
    df = len(cells) - 1
    return (chi2 - df) / math.sqrt(2 * df)


def params(temperature: float, seed: int) -> SamplingParams:
    return SamplingParams(temperature=temperature, top_k=0, top_p=1, min_p=0, seed=seed)


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.8])
def test_the_law_over_seeds(temperature: float) -> None:
    rng = np.random.default_rng(1)
    seen = Counter(
        generate(lambda seed=seed: Sampler(params(temperature, seed), N_VOCAB, n_ctx=64), 7, rng)
        for seed in range(4000)
    )
    assert abs(excess(seen, law(temperature))) < 4


def test_the_law_over_positions() -> None:
    rng = np.random.default_rng(2)
    seen = Counter(
        generate(lambda: Sampler(params(1.0, 11), N_VOCAB, n_ctx=64), N_TOKENS * i, rng) for i in range(4000)
    )
    assert abs(excess(seen, law(1.0))) < 4


def test_the_law_is_sharp_enough_to_tell() -> None:
    """One token in ten thrown away and drawn again without regard to the text: that is noticed."""
    rng = np.random.default_rng(3)

    class Careless(Sampler):
        def sample(self, logits: np.ndarray, position: int) -> int:
            return super().sample(logits if rng.random() > 0.1 else np.zeros_like(logits), position)

    seen = Counter(
        generate(lambda seed=seed: Careless(params(1.0, seed), N_VOCAB, n_ctx=64), 7, rng) for seed in range(4000)
    )
    assert excess(seen, law(1.0)) > 8


def test_the_text_is_the_seed_and_nothing_else() -> None:
    """Whatever tree: the same seed says the same, another one something else."""
    rng = np.random.default_rng(4)
    texts = set()
    for seed in range(200):

        def make(seed: int = seed) -> Sampler:
            return Sampler(replace(params(1.5, seed), repeat_penalty=1.3), N_VOCAB, n_ctx=64)

        plain = generate(make, 5, None)
        assert {generate(make, 5, rng) for _ in range(5)} == {plain}
        texts.add(plain)
    assert len(texts) > 20
