"""The algorithms of limits, as in crates/limit/src/, for requests of cost 1. Times and windows are in whole ms."""

from collections import deque
from dataclasses import dataclass, field


@dataclass
class SlidingWindow:
    """Counters of `k` sub-windows and the one before them: crates/limit/src/sliding_window.rs."""

    quota: int
    window: int
    k: int
    strict: bool = False
    counts: dict = field(default_factory=dict)
    stored_reset: int = 0

    @property
    def step(self):
        return self.window // self.k

    def used(self, now):
        """The full count of `k` sub-windows and the weighted count of the oldest one, rounded up."""
        full, old = self._parts(now // self.step)
        return full + self._weigh(old, self.step - now % self.step)

    def admit(self, now):
        if self.used(now) >= self.quota:
            return False
        index = now // self.step
        self.counts[index] = self.counts.get(index, 0) + 1
        self.stored_reset = self.reset(now)
        if self.used(now) >= self.quota:
            self.stored_reset = max(self.stored_reset, self.retry(now))
        return True

    def reset(self, now):
        """The stored reset, or if it has passed the time at which the oldest charge leaves the window."""
        if self.stored_reset > now:
            return self.stored_reset
        index = now // self.step
        held = [at for at, count in self.counts.items() if count and at >= index - self.k]
        return (min(held) + self.k + 1) * self.step if held else now

    def retry(self, now):
        """The first ms at which a request is admitted if no other is charged."""
        return next(at for at in range(now, now + 2 * self.window) if self.used(at) < self.quota)

    def _parts(self, index):
        full = sum(self.counts.get(index - age, 0) for age in range(self.k))
        return full, self.counts.get(index - self.k, 0)

    def _weigh(self, old, inside):
        return old if self.strict else -(-old * inside // self.step)


@dataclass
class SlidingLog:
    """The time of each charge: crates/limit/src/sliding_log.rs."""

    quota: int
    window: int
    charges: deque = field(default_factory=deque)

    def admit(self, now):
        while self.charges and self.charges[0] + self.window <= now:
            self.charges.popleft()
        if len(self.charges) >= self.quota:
            return False
        self.charges.append(now)
        return True


@dataclass
class FixedWindow:
    """A count and the stored end of its window: crates/limit/src/fixed_window.rs."""

    quota: int
    window: int
    reset: int = 0
    count: int = 0

    def admit(self, now):
        if self.reset <= now:
            self.reset, self.count = now + self.window, 0
        if self.count >= self.quota:
            return False
        self.count += 1
        return True


@dataclass
class TokenBucket:
    """The time at which the bucket is full again: crates/limit/src/token_bucket.rs."""

    quota: int
    window: int
    full_at: int = 0

    def tokens(self, now):
        return self.quota - max(self.full_at - now, 0) * self.quota / self.window

    def admit(self, now):
        full_at = max(self.full_at, now) + self.window // self.quota
        if full_at - now > self.window:
            return False
        self.full_at = full_at
        return True


@dataclass
class LeakyBucket:
    """The end of the taken slots: crates/limit/src/leaky_bucket.rs, without freed slots."""

    quota: int
    window: int
    max_wait: int
    taken_until: int = 0

    def release(self, now):
        """The time of the request's slot; `None` if the wait would be too long."""
        slot = max(self.taken_until, now)
        if slot - now > self.max_wait:
            return None
        self.taken_until = slot + self.window // self.quota
        return slot


def taken(remaining, asked, gateways):
    """The units that one call of a lease takes for one request: crates/limit/src/acquire.rs."""
    return 1 + min(asked, (remaining - 1) // (2 * gateways))
