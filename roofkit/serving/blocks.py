"""KV blocks: how many of a paged cache are in use while decoding sequences grow. Room: serving.

Sequences that decode all grow by one token a step, so a request needs a new block every block_size steps, at a phase that never
changes. A histogram of those phases gives the use after any number of steps exactly, without walking requests.
"""
from roofkit.errors import WorkloadError


class BlockPool:
    """`capacity` blocks of `block_size` tokens; `used` of them are held. Time is the count of decode steps so far."""

    __slots__ = ("capacity", "block_size", "used", "phases")

    def __init__(self, capacity: int, block_size: int) -> None:
        if capacity < 1 or block_size < 1:
            raise WorkloadError(f"a KV cache of {capacity} blocks of {block_size} tokens holds nothing; "
                                f"use fewer or narrower weights, more devices, or a larger share of memory")
        self.capacity, self.block_size, self.used = int(capacity), int(block_size), 0
        self.phases = [0] * self.block_size

    @property
    def free(self) -> int:
        return self.capacity - self.used

    def of(self, tokens: int) -> int:
        """Blocks that hold `tokens` tokens."""
        return -(-tokens // self.block_size)

    def joins(self, cached: int, now: int, by: int = 1) -> None:
        """A sequence with `cached` tokens starts decoding at decode count `now`; by=-1: it stops."""
        self.phases[(cached - now) % self.block_size] += by

    def due(self, now: int) -> int:
        """Blocks that the decode step at count `now` needs: sequences whose cached tokens fill whole blocks."""
        return self.phases[-now % self.block_size]

    def growth(self, now: int, steps: int) -> int:
        """Blocks that `steps` decode steps from count `now` on need."""
        size = self.block_size
        whole, rest = divmod(steps, size)
        total = whole * sum(self.phases) if whole else 0
        return total + sum(self.phases[-(now + i) % size] for i in range(rest))

    def steps_that_fit(self, now: int, most: int) -> int:
        """Largest number of decode steps, at most `most`, whose growth the free blocks cover."""
        if self.growth(now, most) <= self.free:
            return most
        low, high = 0, most
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.growth(now, middle) <= self.free else (low, middle)
        return low
