"""The proof: what the engine is held to, measured by one command."""
