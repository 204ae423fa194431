"""A retrieval service that speaks Search-R1's `/retrieve` contract. Knows nothing of search_rl.

corpus (rows -> passages), store (passages by row), encoders (texts -> vectors), index, bm25 and manifest (an index
folder, built once, never changed), retrievers, fusion and rerank (queries -> passages), opening (a folder and a name
-> a retriever), batching (many requests -> few searches), cache (answers by query), served (an index with its queue
and cache), service (which index is served), contract and responses (what goes over the wire), limits and access (what
is refused), request_log and metrics (what is told of it), app (HTTP), serving (socket, process).
"""
