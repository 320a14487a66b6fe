"""Recordings in the forms of other tools, one file each."""
