"""The audit of the server: what must hold over HTTP, on a live server."""
