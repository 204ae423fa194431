"""A retrieval service that speaks Search-R1's `/retrieve` contract. Knows nothing of search_rl.

corpus (rows -> passages), store (passages by row), encoders (texts -> vectors), index, bm25 and manifest (an index
folder, built once, never changed), retrievers, fusion and rerank (queries -> passages), opening (a folder and a name
-> a retriever), batching (many requests -> few searches), app (HTTP), serving (socket, process).
"""
