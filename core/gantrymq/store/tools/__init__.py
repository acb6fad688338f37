"""A store directory looked at, checked and copied from outside."""
