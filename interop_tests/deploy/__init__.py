"""The files of docs/operations/deploy against the server: container, compose files, unit, rules and dashboard."""
