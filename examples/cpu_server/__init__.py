"""A real vLLM server without a GPU, for tests and demonstrations.

`python examples/cpu_server/install.py` makes the environment, `CpuServer` starts servers in it:

    with CpuServer(method="dflash", acceptance=(0.9, 0.6, 0.3)) as server:
        tokens = server.complete(["def main():"], max_tokens=64)
        print(server.speculation().accepted)
"""

from cpu_server.client import Speculation
from cpu_server.server import CpuServer

__all__ = ["CpuServer", "Speculation"]
