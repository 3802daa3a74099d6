"""Peer cells: what others make of the same work, in children of ours and on servers."""
