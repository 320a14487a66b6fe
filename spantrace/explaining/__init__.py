"""What happens inside one span: the Python stacks of its thread, and the kernels that it launches."""
