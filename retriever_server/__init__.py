"""A retrieval service that speaks Search-R1's `/retrieve` contract. Knows nothing of search_rl.

corpus (rows -> passages), store (passages by row), encoders (texts -> vectors), manifest and index (an index
folder, built once, never changed), retrievers (queries -> passages), batching (many requests -> few
searches), app (HTTP), serving (socket, process).
"""
