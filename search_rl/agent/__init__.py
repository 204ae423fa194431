"""The agent: the protocol it speaks, the environment that answers, the episode that joins them."""
