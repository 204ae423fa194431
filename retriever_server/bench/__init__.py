"""Measures the service as a process under load, beside a plain server and beside the bare search of the same queries.

synthetic (an index without a corpus or a model), queries (texts with their vectors), serve and reference (the two
servers as processes), process (starts them, reads their CPU and memory), load (the client, a process too), bare (the
search without a service), throughput (all of it in one run), oracle, check and soak (every answer held against brute
force).
"""
