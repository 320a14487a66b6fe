"""A Triton backend without a compiler: vLLM finds Triton, and TRITON_INTERPRET=1 runs its kernels in Python."""
