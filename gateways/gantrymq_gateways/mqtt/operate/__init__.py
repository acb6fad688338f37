"""What operators see and do: limits of connections, bans, the console of `gantry mqtt`."""
