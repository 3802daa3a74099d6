"""The schema zoo: hundreds of schemas with instances, and what must hold for every one of them."""
