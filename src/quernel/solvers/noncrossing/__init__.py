"""Quantile levels fitted jointly under the constraint that their curves do not cross."""
