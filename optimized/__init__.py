"""What can be switched on in a vLLM server or in the built-in cycle: one folder per optimization."""
