"""Topics, groups, offsets, routing, cursors and tables over the store."""
