"""Connected clients, their groups, calls to them."""
