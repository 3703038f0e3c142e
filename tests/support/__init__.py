"""Data, models and oracles that several test modules share. No tests here."""
