//! Admission by who is active: what it needs, and whether it can be had.

use super::check::Check;
use crate::config::{self, Config};
use crate::throttle::{
    Geometry, POLICY, Settings, estimate,
    geometry::Sizing,
    mode::{Marks, Mode},
};

const MINUTE: u64 = 60_000;

/// The longest memory, in minutes: 30 days.
const LONGEST: u64 = 30 * 24 * 60;

/// The most tokens a minute that filters are made for.
const MOST: u64 = 1_000_000_000;

/// What the section asks for; `None` where there is none, or a faulty one.
pub(super) fn compile(check: &mut Check<'_>, config: &Config) -> Option<Settings> {
    let written = config.throttle.as_ref()?;
    if config.client.token.is_empty() {
        let what = "`throttle` without a place where tokens are";
        check.fault("throttle", what, "`client.token`, such as [header:authorization]");
    }
    if config.limits.contains_key(POLICY) {
        let what = format!("`{POLICY}`, which the throttle's refusals are named by");
        check.fault(&format!("limits.{POLICY}"), what, "another name");
    }
    unchecked(check, config);
    if written.mode == config::Mode::On {
        let what = "`on`: a gateway that knows nobody yet lets nobody in";
        check.note("throttle.mode", what, "`auto`, and `PUT /api/throttle` when it is needed");
    }
    let marks = marks(check, written);
    let sizing = sizing(check, written)?;
    let geometry = match Geometry::new(&sizing) {
        Ok(geometry) => geometry,
        Err(error) => {
            check.fault("throttle.capacity", error.to_string(), "fewer tokens a minute");
            return None;
        }
    };
    room(check, &geometry);
    let ceiling = estimate::ceiling(&geometry);
    if marks.max_active > ceiling {
        let what = format!("`{}`, more than filters of this size can tell", marks.max_active);
        let expected = format!("at most {ceiling}, or a higher `capacity`");
        check.fault("throttle.max_active", what, &expected);
    }
    Some(Settings {
        marks,
        mode: match written.mode {
            config::Mode::Auto => Mode::Auto,
            config::Mode::On => Mode::On,
            config::Mode::Off => Mode::Off,
        },
        forget_status: written.forget_status.iter().map(|status| status.0).collect(),
        sizing,
        geometry,
    })
}

/// Notes routes on which any token becomes known.
fn unchecked(check: &mut Check<'_>, config: &Config) {
    for (index, route) in config.routes.iter().enumerate() {
        let upstream = route.upstream.as_ref().and_then(|name| config.upstreams.get(name));
        if route.throttle && upstream.is_some_and(|upstream| upstream.respond.is_some()) {
            let what = "the gateway itself answers, and checks no token: any becomes known here";
            let path = format!("routes[{index}].upstream");
            check.note(&path, what, "`throttle: false` on this route");
        }
    }
}

fn marks(check: &mut Check<'_>, written: &config::Throttle) -> Marks {
    let max_active = written.max_active;
    check.ensure(max_active > 0, "throttle.max_active", "`0`", "at least 1");
    // Nine tenths, rounded up: 1 of 1, so that an empty house is open again.
    let resume_below = written.resume_below.unwrap_or_else(|| max_active - max_active / 10).max(1);
    if let Some(written) = written.resume_below {
        let sound = (1..=max_active).contains(&written);
        let expected = format!("1 to `max_active`, {max_active}");
        check.ensure(sound, "throttle.resume_below", &format!("`{written}`"), &expected);
    }
    Marks { max_active, resume_below }
}

fn sizing(check: &mut Check<'_>, written: &config::Throttle) -> Option<Sizing> {
    let before = check.faults.len();
    let memory = written.memory.millis();
    let whole = memory.is_multiple_of(MINUTE) && (1..=LONGEST).contains(&(memory / MINUTE));
    let what = format!("`{}`", written.memory);
    check.ensure(whole, "throttle.memory", &what, "whole minutes, from 1m to 720h");
    let capacity = written.capacity;
    let sound = (1..=MOST).contains(&capacity);
    let expected = format!("1 to {MOST} tokens a minute");
    check.ensure(sound, "throttle.capacity", &format!("`{capacity}`"), &expected);
    let rate = written.false_positive;
    let expected = "a share between 1e-9 and 0.5, such as 0.001";
    let sound = (1e-9..=0.5).contains(&rate);
    check.ensure(sound, "throttle.false_positive", &format!("`{rate}`"), expected);
    let unread = ["memory", "capacity", "false_positive"];
    let unread = unread.into_iter().any(|key| check.is_unread(&format!("throttle.{key}")));
    let sound = check.faults.len() == before && !unread;
    sound.then_some(Sizing { capacity, false_positive: rate, memory })
}

/// Notes filters that would not fit into this machine's memory beside everything else. Twice: where this
/// machine's clock is ahead of Redis', the filters begin anew, and for a moment both are there.
fn room(check: &mut Check<'_>, geometry: &Geometry) {
    let (needed, Some(there)) = (geometry.bytes(), crate::throttle::memory::usable()) else {
        return;
    };
    if needed > there / 8 * 3 {
        let what = format!("filters of {} MiB", needed.div_ceil(1 << 20));
        let expected = format!(
            "at most three eighths of the {} MiB here: fewer tokens a minute, or a higher \
             `false_positive`",
            there >> 20
        );
        check.fault("throttle.capacity", what, &expected);
    }
}

#[cfg(test)]
mod tests {
    use crate::config;
    use crate::snapshot::Snapshot;
    use crate::throttle::mode::{Marks, Mode};

    const ROUTES: &str = "\
upstreams:
  app: {targets: [http://h:1]}
  hello: {respond: {}}
routes:
  - {name: app, match: {path: /}, upstream: app}
  - {name: hello, match: {path: /hello}, upstream: hello}
  - {name: health, match: {path: /health}, upstream: hello, throttle: false}
";

    fn compile(throttle: &str) -> Result<Snapshot, String> {
        let text = format!("throttle: {{{throttle}}}\n{ROUTES}");
        let loaded =
            config::parse("t.yaml", &text).unwrap_or_else(|unread| panic!("{}", unread.faults));
        Snapshot::compile(&loaded).map_err(|faults| faults.to_string())
    }

    #[test]
    fn what_is_left_out_is_filled_in() {
        let settings = compile("max_active: 100").unwrap().throttle.unwrap();
        assert_eq!(settings.marks, Marks { max_active: 100, resume_below: 90 });
        assert_eq!((settings.mode, &settings.forget_status[..]), (Mode::Auto, &[401, 403][..]));
        assert_eq!((settings.geometry.memory, settings.geometry.generation), (30, 60_000));
        let mib = settings.geometry.bytes() >> 20;
        assert!((80..90).contains(&mib), "{mib} MiB for a million tokens a minute");
        for (max_active, resume_below) in [(1, 1), (9, 9), (10, 9), (11, 10), (1_000_000, 900_000)]
        {
            let settings = compile(&format!("max_active: {max_active}")).unwrap().throttle.unwrap();
            assert_eq!(settings.marks.resume_below, resume_below, "{max_active}");
        }
        let long = compile("max_active: 100, memory: 24h, capacity: 1000").unwrap();
        assert_eq!(long.throttle.unwrap().geometry.generation, 48 * 60_000);
        assert!(
            compile("max_active: 100, mode: 'off'").unwrap().throttle.unwrap().mode == Mode::Off
        );
    }

    #[test]
    fn what_cannot_be_is_a_fault_with_its_place() {
        for (throttle, path, told) in [
            ("max_active: 0", "1:24", "at least 1"),
            ("max_active: 10, resume_below: 11", "1:42", "1 to `max_active`, 10"),
            ("max_active: 10, resume_below: 0", "1:42", "1 to `max_active`, 10"),
            ("max_active: 10, memory: 90s", "1:36", "whole minutes"),
            ("max_active: 10, memory: 0s", "1:36", "whole minutes"),
            ("max_active: 10, memory: 721h", "1:36", "whole minutes"),
            ("max_active: 10, capacity: 0", "1:38", "tokens a minute"),
            ("max_active: 10, capacity: 1000000000", "1:38", "MiB here"),
            ("max_active: 10, capacity: 2000000000", "1:38", "1 to 1000000000"),
            ("max_active: 10, false_positive: 0", "1:44", "a share between"),
            ("max_active: 10, false_positive: 1.0", "1:44", "a share between"),
            ("max_active: 1000000, capacity: 1000", "1:24", "or a higher `capacity`"),
        ] {
            let faults = compile(throttle).unwrap_err();
            let place = format!("t.yaml:{path}: ");
            assert!(faults.contains(&place) && faults.contains(told), "{throttle}: {faults}");
        }
    }

    #[test]
    fn it_needs_a_place_for_tokens_and_its_name_for_itself() {
        let faults = compile("max_active: 10}\nclient: {token: []").unwrap_err();
        assert!(faults.contains("`client.token`"), "{faults}");
        let limits = "max_active: 10}\nlimits: {active-users: {quota: 1, window: 1s}";
        let faults = compile(limits).unwrap_err();
        assert!(faults.contains("another name"), "{faults}");
    }

    #[test]
    fn a_route_without_a_server_is_noted() {
        let notes = compile("max_active: 10").unwrap().notes;
        let told: Vec<String> = notes.iter().map(ToString::to_string).collect();
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(told[0].starts_with("t.yaml:7:"), "{told:?}");
        let text = format!("workers: 1\n{ROUTES}");
        let loaded = config::parse("t.yaml", &text).unwrap();
        assert!(Snapshot::compile(&loaded).unwrap().notes.is_empty(), "no throttle, no note");
    }
}
