"""The contract of adapters: what an engine and its dialect claim, held against a live server."""
