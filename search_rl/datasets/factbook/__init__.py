"""The World Factbook as a corpus and as one-hop, two-hop and comparison questions with known evidence."""

from search_rl.datasets.factbook.build import build_factbook
from search_rl.datasets.factbook.card import FactbookCard
from search_rl.datasets.factbook.oracle import read_oracle_queries, relation_of

__all__ = ["FactbookCard", "build_factbook", "read_oracle_queries", "relation_of"]
