"""One adapter per system. Each takes a task, times the system's own fit, and hands back what it found."""
