"""Virtual hosts: what there is of them, their limits and those of users."""
