"""Interleaved arms: a plan, the order of its windows, the directory that keeps them, and what they are measured on."""
