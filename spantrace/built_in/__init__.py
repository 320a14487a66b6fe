"""The built-in cycle of `optimized.reference_cycle`, recorded as a server is: what several commands drive."""
