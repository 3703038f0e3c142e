"""Speed and memory of quernel beside named baselines. Run all with `make bench`."""
