"""Whether a score can be trusted: what leaked into the questions, and which habits earn without answering."""
