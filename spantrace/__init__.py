"""spantrace: who bounds the speculative-decode cycle of a live vLLM server, and what each span of it costs."""

__version__ = "0.1.0"
