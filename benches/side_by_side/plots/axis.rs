//! Axes: the place of a value, and the values of the ticks.

/// An axis from one pixel to another. Pixels grow downwards, so a vertical axis starts at the
/// greater one.
#[derive(Clone, Copy)]
pub(super) struct Axis {
    scale: Scale,
    start: f64,
    end: f64,
}

/// The values at the ends, and the distances between.
#[derive(Clone, Copy)]
enum Scale {
    Linear { from: f64, to: f64 },
    Logarithmic { from: f64, to: f64 },
}

/// Most intervals between the ticks of a linear axis.
const MAX_INTERVALS: f64 = 6.0;

impl Axis {
    /// From `from` to `to`.
    pub(super) fn linear(from: f64, to: f64) -> Self {
        Self { scale: Scale::Linear { from, to }, start: 0.0, end: 1.0 }
    }

    /// From 0 to the tick above the greatest of `values`.
    pub(super) fn from_zero(values: impl Iterator<Item = f64>) -> Self {
        let greatest = values.fold(0.0, f64::max);
        let step = step(greatest);
        Self::linear(0.0, (greatest / step).ceil().max(1.0) * step)
    }

    /// A logarithmic axis with all of `values`, which are positive. Its ends are 1, 2 or 5 times a
    /// power of 10.
    pub(super) fn logarithmic(values: impl Iterator<Item = f64> + Clone) -> Self {
        let least = values.clone().fold(f64::INFINITY, f64::min);
        let greatest = values.fold(0.0, f64::max);
        let from = steps(least).filter(|&tick| tick <= least).last().unwrap_or(least);
        let to = steps(greatest).find(|&tick| tick >= greatest).unwrap_or(greatest);
        Self { scale: Scale::Logarithmic { from, to }, start: 0.0, end: 1.0 }
    }

    /// The axis between these pixels.
    pub(super) fn between(self, start: f64, end: f64) -> Self {
        Self { start, end, ..self }
    }

    /// The pixel of a value.
    pub(super) fn place(self, value: f64) -> f64 {
        let share = match self.scale {
            Scale::Linear { from, to } => (value - from) / (to - from),
            Scale::Logarithmic { from, to } => (value / from).ln() / (to / from).ln(),
        };
        self.start + share * (self.end - self.start)
    }

    /// The values with a tick.
    pub(super) fn ticks(self) -> Vec<f64> {
        match self.scale {
            Scale::Linear { from, to } => {
                let step = step(to - from);
                let count = ((to - from) / step).round() as u32;
                (0..=count).map(|index| from + f64::from(index) * step).collect()
            }
            Scale::Logarithmic { from, to } => {
                let mut ticks = Vec::new();
                let mut decade = 10_f64.powf(from.log10().floor());
                while decade <= to {
                    let near = [1.0, 2.0, 5.0].map(|factor| factor * decade);
                    // The ends are ticks, in spite of rounding.
                    ticks.extend(
                        near.iter().filter(|&&tick| tick > from * 0.99 && tick < to * 1.01),
                    );
                    decade *= 10.0;
                }
                ticks
            }
        }
    }
}

/// The distance between the ticks of a linear axis of this length: 1, 2 or 5 times a power of 10.
fn step(length: f64) -> f64 {
    steps(length / MAX_INTERVALS).find(|&step| step * MAX_INTERVALS >= length).unwrap_or(1.0)
}

/// 1, 2 and 5 times the powers of 10 around a value, ascending.
fn steps(value: f64) -> impl Iterator<Item = f64> {
    let decade = value.max(1e-9).log10().floor() as i32;
    (decade - 1..=decade + 1)
        .flat_map(|power| [1.0, 2.0, 5.0].map(|factor| factor * 10_f64.powi(power)))
}

/// A value with commas between thousands, with up to two decimals if it is small.
pub(super) fn number(value: f64) -> String {
    if value < 10.0 {
        return format!("{value:.2}").trim_end_matches('0').trim_end_matches('.').to_owned();
    }
    let digits = format!("{value:.0}");
    let first = digits.len() % 3;
    let mut text = String::new();
    for (index, digit) in digits.char_indices() {
        if index > 0 && index % 3 == first {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
