"""`vllm bench serve` of vllm's CPU build: the same arguments, the same code.

The `vllm` program of that build asks for the metadata of a package named vllm, which the build is
not, and ends there.
"""

from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser

parser = FlexibleArgumentParser(prog="vllm bench serve")
add_cli_args(parser)
main(parser.parse_args())
