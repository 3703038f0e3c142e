"""All levels at once, under the constraint that none crosses the next."""
