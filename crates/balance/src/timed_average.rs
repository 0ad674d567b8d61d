//! [`TimedAverage`]: a moving average and the time of its last observation, in 64 bits.

use tidegate_base::time::{CoarseTime, Millis};

/// A moving average of one endpoint. The default has no observation.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct TimedAverage {
    pub(super) value: f32,
    /// The last observation, in ms, modulo 2^32.
    observed_at: u32,
}

impl TimedAverage {
    /// The average after an observation at `now`.
    #[inline]
    pub(super) fn new(value: f32, now: CoarseTime) -> Self {
        Self { value, observed_at: now.as_ms() as u32 }
    }

    /// The average that [`Self::to_bits`] packed.
    #[inline]
    pub(super) fn from_bits(bits: u64) -> Self {
        Self { value: f32::from_bits((bits >> 32) as u32), observed_at: bits as u32 }
    }

    /// The average in one word, for an atomic. 0 is the default.
    #[inline]
    pub(super) fn to_bits(self) -> u64 {
        u64::from(self.value.to_bits()) << 32 | u64::from(self.observed_at)
    }

    /// The time since the last observation, in multiples of `unit`. A step back of the clock counts
    /// as no time.
    #[inline]
    pub(super) fn age(self, now: CoarseTime, unit: Millis) -> f32 {
        let age = (now.as_ms() as u32).wrapping_sub(self.observed_at);
        if age > u32::MAX / 2 { 0.0 } else { age as f32 / unit.as_ms() as f32 }
    }
}
