"""Key and value caches whose rows join, leave and roll back in O(1)."""
