"""Which nodes to check: the set that maximises expected tokens per millisecond.

Siblings exclude each other and a child is never likelier than its parent, so the best set of n nodes is the n
likeliest, and one scan over n finds the best of all for any cost curve, staircases included (algorithms: DySpec,
OPT-Tree; the scan over n: this project).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from edgedec.types import Candidates, Draft


@dataclass(slots=True)
class Trie:
    """All proposals of one step merged: equal tokens behind the same parent are one node."""

    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    probs: list[float] = field(default_factory=list)  # given the parent
    path_probs: list[float] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)


def merge(proposals: Sequence[tuple[Candidates, Sequence[float]]]) -> Trie:
    """One trie from (candidates, probability of each node given its parent). A node that several drafters propose takes
    the highest of their probabilities and that drafter's name; siblings are scaled down if they sum to more than 1."""
    trie = Trie()
    index: dict[tuple[int, int], int] = {}
    for candidates, probs in proposals:
        at: list[int] = []
        for token, parent, prob in zip(candidates.tokens, candidates.parents, probs, strict=True):
            key = (at[parent] if parent >= 0 else -1, token)
            node = index.get(key)
            if node is None:
                node = index[key] = len(trie.tokens)
                trie.tokens.append(token)
                trie.parents.append(key[0])
                trie.probs.append(prob)
                trie.sources.append(candidates.source)
            elif prob > trie.probs[node]:
                trie.probs[node], trie.sources[node] = prob, candidates.source
            at.append(node)
    totals: dict[int, float] = {}
    for parent, prob in zip(trie.parents, trie.probs, strict=True):
        totals[parent] = totals.get(parent, 0.0) + prob
    for i, parent in enumerate(trie.parents):
        if totals[parent] > 1.0:
            trie.probs[i] /= totals[parent]
        trie.path_probs.append(trie.probs[i] * (trie.path_probs[parent] if parent >= 0 else 1.0))
    return trie


def best_set(trie: Trie, cost_ms: Callable[[int], float], *, n_max: int, leaves_max: int) -> tuple[list[int], float]:
    """The nodes to check, parents first, and the expected rate in tokens per millisecond.

    ``cost_ms(n)`` is the time of a step with n rows (root and n - 1 nodes). No node at all is a possible answer. Chains
    (``leaves_max`` 1) are the best of all chains. Where a limit of more leaves is reached, the next likeliest node that
    keeps it is taken, which need not be the best of all.
    """
    if leaves_max == 1:
        return _best_chain(trie, cost_ms, n_max)
    order = sorted(range(len(trie.tokens)), key=lambda i: (-trie.path_probs[i], i))
    chosen: list[int] = []
    in_set: set[int] = set()
    has_child: set[int] = set()
    n_leaves = 0
    gain = 1.0
    best_n, best_rate = 0, 1.0 / cost_ms(1)
    for i in order:
        if len(chosen) >= n_max:
            break
        parent = trie.parents[i]
        if parent >= 0 and parent not in in_set:
            continue
        opens_leaf = parent < 0 or parent in has_child
        if opens_leaf and n_leaves >= leaves_max:
            continue
        chosen.append(i)
        in_set.add(i)
        has_child.add(parent)
        n_leaves += opens_leaf
        gain += trie.path_probs[i]
        rate = gain / cost_ms(len(chosen) + 1)
        if rate > best_rate:
            best_n, best_rate = len(chosen), rate
    return chosen[:best_n], best_rate


def _best_chain(trie: Trie, cost_ms: Callable[[int], float], n_max: int) -> tuple[list[int], float]:
    """Every node ends one chain; the likeliest first token need not lead to the best of them."""
    gains: list[float] = []
    depths: list[int] = []
    best, best_rate = -1, 1.0 / cost_ms(1)
    for i, (parent, path_prob) in enumerate(zip(trie.parents, trie.path_probs, strict=True)):
        depths.append(1 + (depths[parent] if parent >= 0 else 0))
        gains.append(path_prob + (gains[parent] if parent >= 0 else 1.0))
        if depths[i] <= n_max:
            rate = gains[i] / cost_ms(depths[i] + 1)
            if rate > best_rate:
                best, best_rate = i, rate
    chain: list[int] = []
    while best >= 0:
        chain.append(best)
        best = trie.parents[best]
    return chain[::-1], best_rate


def to_draft(trie: Trie, nodes: Sequence[int]) -> Draft:
    """The chosen nodes as a draft, depth first, so that rows of one branch lie together."""
    children: dict[int, list[int]] = {}
    for i in nodes:
        children.setdefault(trie.parents[i], []).append(i)
    order: list[int] = []
    stack = list(reversed(children.get(-1, [])))
    while stack:
        i = stack.pop()
        order.append(i)
        stack.extend(reversed(children.get(i, [])))
    place = {node: k for k, node in enumerate(order)}
    return Draft(
        tokens=tuple(trie.tokens[i] for i in order),
        parents=tuple(place[trie.parents[i]] if trie.parents[i] >= 0 else -1 for i in order),
        sources=tuple(trie.sources[i] for i in order),
        probs=tuple(trie.probs[i] for i in order),
    )
