"""Analyses of recordings: pure functions, numpy in, frozen results out; one file an analysis."""
