"""Each light queue lies in one group, its owner, with its cursors, routes and consumers (docs/decisions/0013)."""
