"""What a process does at its start and says about it: checks, progress, service managers."""
