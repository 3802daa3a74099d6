"""Grammars: constraints compiled to masks, and the position of every row in its own."""
