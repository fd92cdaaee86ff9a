"""Attention of 1 x 8 x 512 x 64 in f16 by PyTorch's backends, a line each.

The calls follow each other in one CUDA graph, over 16 copies of the inputs; a time is the median of nine.
"""

import sys

try:
    import torch
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel
except ImportError as error:
    sys.exit(f"peers: {error}")

if not torch.cuda.is_available():
    sys.exit("peers: torch finds no GPU")

COPIES, CALLS, REPLAYS, REPEATS = 16, 64, 100, 9
BACKENDS = {"cuDNN": SDPBackend.CUDNN_ATTENTION, "FlashAttention-2": SDPBackend.FLASH_ATTENTION}


def time_us(calls):
    """Median time of one call, in microseconds."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for call in calls[:2]:
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(CALLS):
            calls[i % len(calls)]()

    def replay():
        start, stop = torch.cuda.Event(True), torch.cuda.Event(True)
        start.record()
        for _ in range(REPLAYS):
            graph.replay()
        stop.record()
        stop.synchronize()
        return start.elapsed_time(stop) * 1e3 / REPLAYS / CALLS

    replay()
    return sorted(replay() for _ in range(REPEATS))[REPEATS // 2]


def main():
    inputs = [
        [torch.randn(1, 8, 512, 64, device="cuda", dtype=torch.float16) for _ in range(3)] for _ in range(COPIES)
    ]
    for causal in (False, True):
        for name, backend in BACKENDS.items():
            mask = "causal" if causal else "full"
            try:
                with sdpa_kernel(backend):
                    us = time_us([lambda x=x: F.scaled_dot_product_attention(*x, is_causal=causal) for x in inputs])
                print(f"{mask:<7} {us:28.2f} us  {name}, torch {torch.__version__}", flush=True)
            except RuntimeError as error:
                print(f"{mask:<7} {name}: {str(error).splitlines()[0]}", flush=True)


main()
