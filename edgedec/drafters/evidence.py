"""What counted occurrences say about the next token: one rule for all drafters that copy."""

from __future__ import annotations

_PRIORS = (0.0, 0.12, 0.3, 0.5, 0.5, 0.7, 0.7, 0.7, *8 * (0.85,), *16 * (0.9,), 0.95)
# By match length (the last entry: and longer): how often what followed a single earlier occurrence comes next again.


def score(match_len: int, n_hits: float, n_seen: float) -> float:
    """Probability that a continuation comes again that came ``n_hits`` times out of ``n_seen``.

    Absolute discounting (Ney, Essen and Kneser, On structuring probabilistic dependences in stochastic language
    modelling, 1994), with the discount that gives a single occurrence the prior of its match length.
    """
    return (n_hits - 1 + _PRIORS[min(match_len, len(_PRIORS) - 1)]) / n_seen
