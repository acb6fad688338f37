"""Small files that say how far the large ones have come."""
