"""A retrieval service that speaks Search-R1's `/retrieve` contract. Knows nothing of search_rl."""
