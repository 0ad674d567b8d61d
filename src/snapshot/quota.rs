//! How much may pass in how long, and what can be counted exactly.

use super::check::Check;
use crate::config;
use crate::limit::{MAX_QUOTA_MILLIS, MAX_RESOLUTION, Millis, Quota, sliding_log};

/// The largest quota of a log without a note: 80 KB a key.
const MODEST_LOG: u32 = 10_000;

/// The quota; where it is faulty, one that does no harm to the checks that follow.
pub(super) fn quota(check: &mut Check<'_>, path: &str, limit: &config::Limit) -> Quota {
    let at = format!("{path}.quota");
    let expected = format!("a quota from 1 to {}", u32::MAX);
    let written = u32::try_from(limit.quota).ok().filter(|&quota| quota > 0);
    check.ensure(written.is_some(), &at, &format!("`{}`", limit.quota), &expected);
    check.some_time(&format!("{path}.window"), limit.window);
    let (window, resolution) = (limit.window.millis().max(1), limit.resolution());
    let sound = divides(window, resolution) || limit.window.millis() == 0;
    if !sound {
        let what = format!("`{resolution}` sub-windows of {}", limit.window);
        check.fault(&format!("{path}.resolution"), what, &dividers(window, resolution));
    }
    max_wait(check, path, limit);
    let quota = quota_of(limit, written.unwrap_or(u32::MAX));
    if sound && written.is_some() {
        bounds(check, path, &at, limit.algorithm, &quota);
    }
    quota
}

/// The quota of `limit` with this number; where the rest is faulty, something that does no harm.
fn quota_of(limit: &config::Limit, number: u32) -> Quota {
    let (window, resolution) = (limit.window.millis().max(1), limit.resolution());
    let resolution = if divides(window, resolution) { resolution } else { 1 };
    let mut max_wait = 0;
    if limit.algorithm == config::Algorithm::LeakyBucket {
        let wait = limit.max_wait.unwrap_or(limit.window).millis();
        let queue = limit.max_queue.map_or(u64::MAX, |most| last_of(most, window, number.into()));
        max_wait = u32::try_from(wait.min(queue)).unwrap_or(u32::MAX);
    }
    Quota { max_wait, strict: limit.strict, ..Quota::new(number, window, resolution) }
}

/// How long the last of `most` requests waits, in ms, if they come at once behind another: so many wait
/// at the most if none waits longer. Rounded up, so that the last may; at more than one release a ms
/// rounded down, because a whole ms more would let several more in.
fn last_of(most: u32, window: Millis, number: u64) -> Millis {
    let slots = u64::from(most).saturating_mul(window);
    if number <= window { slots.div_ceil(number) } else { slots / number }
}

/// Notes a wait that is too long to be counted.
fn max_wait(check: &mut Check<'_>, path: &str, limit: &config::Limit) {
    let Some(wait) = limit.max_wait else { return };
    let fits = u32::try_from(wait.millis()).is_ok();
    let path = format!("{path}.max_wait");
    check.ensure(fits, &path, &format!("`{wait}`"), "a time of at most 1193h");
}

/// Notes what could not be counted exactly, and what takes more memory than may be meant.
fn bounds(check: &mut Check<'_>, path: &str, at: &str, by: config::Algorithm, quota: &Quota) {
    // What a unit of the quota is multiplied by.
    let (millis, shorter): (Millis, _) = match by {
        config::Algorithm::SlidingWindow => {
            (quota.sub_window(), "shorter sub-windows (a higher resolution)")
        }
        config::Algorithm::TokenBucket => (quota.window, "a shorter window"),
        config::Algorithm::LeakyBucket => {
            (quota.window.max(quota.max_wait.into()), "a shorter window and max_wait")
        }
        config::Algorithm::SlidingLog
        | config::Algorithm::FixedWindow
        | config::Algorithm::Concurrency => (1, ""),
    };
    let most = MAX_QUOTA_MILLIS / millis;
    if u64::from(quota.limit) > most {
        let what = format!("`{}`, too much to count exactly", quota.limit);
        check.fault(at, what, &format!("at most {most}, or {shorter}"));
    }
    if by == config::Algorithm::SlidingLog {
        let fits = quota.window <= sliding_log::MAX_WINDOW;
        let longest = format!("at most {}h", sliding_log::MAX_WINDOW / 3_600_000);
        let window = format!("{path}.window");
        check.ensure(fits, &window, "longer than a log remembers", &longest);
        if quota.limit > MODEST_LOG {
            let what = format!("`{}` with sliding_log: up to 8 bytes a unit and key", quota.limit);
            check.note(at, what, &format!("at most {MODEST_LOG}, or `strict: true` instead"));
        }
    }
}

fn divides(window: u64, resolution: u32) -> bool {
    (1..=MAX_RESOLUTION).contains(&resolution) && window.is_multiple_of(u64::from(resolution))
}

/// Which resolutions near the one asked for would do.
fn dividers(window: u64, resolution: u32) -> String {
    let mut below = (1..resolution.min(MAX_RESOLUTION + 1)).rev();
    let mut above = resolution.saturating_add(1)..=MAX_RESOLUTION;
    let below = below.find(|&k| divides(window, k));
    let above = above.find(|&k| divides(window, k));
    let near: Vec<String> = below.into_iter().chain(above).map(|k| k.to_string()).collect();
    format!(
        "a resolution from 1 to {MAX_RESOLUTION} that divides it, such as {}",
        near.join(" or ")
    )
}

/// The quota of `written` with another number, which stands at `at`.
pub(super) fn other_quota(
    check: &mut Check<'_>,
    path: &str,
    at: &str,
    written: &config::Limit,
    number: u64,
) -> Option<Quota> {
    let limit = u32::try_from(number).ok().filter(|&limit| limit > 0);
    let expected = format!("a quota from 1 to {}", u32::MAX);
    check.ensure(limit.is_some(), at, &format!("`{number}`"), &expected);
    let quota = Quota { limit: limit?, ..quota_of(written, limit?) };
    bounds(check, path, at, written.algorithm, &quota);
    Some(quota)
}
