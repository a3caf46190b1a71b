"""Measuring guessing against plain decoding: suites of prompts, interleaved runs, what they say, and how to show it."""
