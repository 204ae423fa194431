"""Train a language model to decide when to search, what to search for and when to answer (Search-R1, 2503.09516)."""

__version__ = "0.1.0"
