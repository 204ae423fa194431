"""The `search-rl` command: one module a noun, composed in `main`."""
