//! Compiles the `throttle` section: active-user admission control.

use super::check::Check;
use crate::config::{self, Config};
use crate::throttle::{
    Geometry, POLICY, Settings, estimate,
    geometry::Sizing,
    mode::{Mode, Watermarks},
};

/// One minute, in ms.
const MINUTE: u64 = 60_000;

/// Maximum `memory`, in minutes: 30 days.
const MAX_MEMORY: u64 = 30 * 24 * 60;

/// Maximum `capacity`, in tokens per minute.
const MAX_CAPACITY: u64 = 1_000_000_000;

/// Compiles the section; `None` if there is none or if it is faulty.
pub(super) fn compile(check: &mut Check<'_>, config: &Config) -> Option<Settings> {
    let configured = config.throttle.as_ref()?;
    if config.client.token.is_empty() {
        let what = "`throttle` with an empty `client.token`";
        check.fault(
            "throttle",
            what,
            "at least one token source in `client.token`, such as header:authorization",
        );
    }
    if config.limits.contains_key(POLICY) {
        let what = format!("`{POLICY}`, the policy name of the throttle");
        check.fault(&format!("limits.{POLICY}"), what, "another name");
    }
    check_fixed_responses(check, config);
    if configured.mode == config::Mode::On {
        let what = "`on`: a gateway that starts without active users admits no user";
        check.note("throttle.mode", what, "`auto`, and `PUT /api/throttle` when it is needed");
    }
    let watermarks = watermarks(check, configured);
    let sizing = sizing(check, configured)?;
    let geometry = match Geometry::new(&sizing) {
        Ok(geometry) => geometry,
        Err(error) => {
            check.fault("throttle.capacity", error.to_string(), "fewer tokens per minute");
            return None;
        }
    };
    check_memory(check, &geometry);
    let ceiling = estimate::max_countable(&geometry);
    if watermarks.max_active > ceiling {
        let what =
            format!("`{}`, more than filters of this size can estimate", watermarks.max_active);
        let expected = format!("at most {ceiling}, or a higher `capacity`");
        check.fault("throttle.max_active", what, &expected);
    }
    Some(Settings {
        watermarks,
        mode: match configured.mode {
            config::Mode::Auto => Mode::Auto,
            config::Mode::On => Mode::On,
            config::Mode::Off => Mode::Off,
        },
        forget_status: configured.forget_status.iter().map(|status| status.0).collect(),
        sizing,
        geometry,
    })
}

/// Notes routes with a fixed response, on which any token becomes active.
fn check_fixed_responses(check: &mut Check<'_>, config: &Config) {
    for (index, route) in config.routes.iter().enumerate() {
        let upstream = route.upstream.as_ref().and_then(|name| config.upstreams.get(name));
        if route.throttle && upstream.is_some_and(|upstream| upstream.respond.is_some()) {
            let what = "a fixed response checks no token: every token becomes active on this route";
            let path = format!("routes[{index}].upstream");
            check.note(&path, what, "`throttle: false` on this route");
        }
    }
}

fn watermarks(check: &mut Check<'_>, configured: &config::Throttle) -> Watermarks {
    let max_active = configured.max_active;
    check.ensure(max_active > 0, "throttle.max_active", "`0`", "at least 1");
    // Nine tenths, rounded up: at least 1, so that throttling ends when no user is active.
    let resume_below =
        configured.resume_below.unwrap_or_else(|| max_active - max_active / 10).max(1);
    if let Some(configured) = configured.resume_below {
        let is_valid = (1..=max_active).contains(&configured);
        let expected = format!("1 to `max_active`, {max_active}");
        check.ensure(is_valid, "throttle.resume_below", &format!("`{configured}`"), &expected);
    }
    Watermarks { max_active, resume_below }
}

fn sizing(check: &mut Check<'_>, configured: &config::Throttle) -> Option<Sizing> {
    let before = check.faults.len();
    let memory = configured.memory.millis();
    let is_valid = memory.is_multiple_of(MINUTE) && (1..=MAX_MEMORY).contains(&(memory / MINUTE));
    let what = format!("`{}`", configured.memory);
    check.ensure(is_valid, "throttle.memory", &what, "whole minutes, from 1m to 720h");
    let capacity = configured.capacity;
    let is_valid = (1..=MAX_CAPACITY).contains(&capacity);
    let expected = format!("1 to {MAX_CAPACITY} tokens per minute");
    check.ensure(is_valid, "throttle.capacity", &format!("`{capacity}`"), &expected);
    let rate = configured.false_positive;
    let expected = "a share between 1e-9 and 0.5, such as 0.001";
    let is_valid = (1e-9..=0.5).contains(&rate);
    check.ensure(is_valid, "throttle.false_positive", &format!("`{rate}`"), expected);
    let keys = ["memory", "capacity", "false_positive"];
    let is_skipped = keys.into_iter().any(|key| check.is_skipped(&format!("throttle.{key}")));
    let is_valid = check.faults.len() == before && !is_skipped;
    is_valid.then_some(Sizing { capacity, false_positive: rate, memory })
}

/// Reports filters that take more than three eighths of this machine's memory: while they are rebuilt
/// because this machine's clock is ahead of that of Redis, old and new filters exist at once.
fn check_memory(check: &mut Check<'_>, geometry: &Geometry) {
    let (needed, Some(available)) = (geometry.bytes(), crate::throttle::machine_memory::usable())
    else {
        return;
    };
    if needed > available / 8 * 3 {
        let what = format!("filters of {} MiB", needed.div_ceil(1 << 20));
        let expected = format!(
            "at most three eighths of the {} MiB of this machine: fewer tokens per minute, or a \
             higher `false_positive`",
            available >> 20
        );
        check.fault("throttle.capacity", what, &expected);
    }
}

#[cfg(test)]
mod tests {
    use crate::config;
    use crate::snapshot::Snapshot;
    use crate::throttle::mode::{Mode, Watermarks};

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
        let loaded = config::parse("t.yaml", &text).unwrap_or_else(|error| panic!("{error}"));
        Snapshot::compile(&loaded).map_err(|faults| faults.to_string())
    }

    #[test]
    fn missing_keys_have_their_defaults() {
        let settings = compile("max_active: 100").unwrap().throttle.unwrap();
        assert_eq!(settings.watermarks, Watermarks { max_active: 100, resume_below: 90 });
        assert_eq!((settings.mode, &settings.forget_status[..]), (Mode::Auto, &[401, 403][..]));
        assert_eq!(
            (settings.geometry.complete_generations, settings.geometry.generation_length),
            (30, 60_000)
        );
        let mib = settings.geometry.bytes() >> 20;
        assert!((80..90).contains(&mib), "{mib} MiB for a million tokens per minute");
        for (max_active, resume_below) in [(1, 1), (9, 9), (10, 9), (11, 10), (1_000_000, 900_000)]
        {
            let settings = compile(&format!("max_active: {max_active}")).unwrap().throttle.unwrap();
            assert_eq!(settings.watermarks.resume_below, resume_below, "{max_active}");
        }
        let long = compile("max_active: 100, memory: 24h, capacity: 1000").unwrap();
        assert_eq!(long.throttle.unwrap().geometry.generation_length, 48 * 60_000);
        assert!(
            compile("max_active: 100, mode: 'off'").unwrap().throttle.unwrap().mode == Mode::Off
        );
    }

    #[test]
    fn invalid_values_are_located() {
        for (throttle, path, expected) in [
            ("max_active: 0", "1:24", "at least 1"),
            ("max_active: 10, resume_below: 11", "1:42", "1 to `max_active`, 10"),
            ("max_active: 10, resume_below: 0", "1:42", "1 to `max_active`, 10"),
            ("max_active: 10, memory: 90s", "1:36", "whole minutes"),
            ("max_active: 10, memory: 0s", "1:36", "whole minutes"),
            ("max_active: 10, memory: 721h", "1:36", "whole minutes"),
            ("max_active: 10, capacity: 0", "1:38", "tokens per minute"),
            ("max_active: 10, capacity: 1000000000", "1:38", "MiB of this machine"),
            ("max_active: 10, capacity: 2000000000", "1:38", "1 to 1000000000"),
            ("max_active: 10, false_positive: 0", "1:44", "a share between"),
            ("max_active: 10, false_positive: 1.0", "1:44", "a share between"),
            ("max_active: 1000000, capacity: 1000", "1:24", "or a higher `capacity`"),
        ] {
            let faults = compile(throttle).unwrap_err();
            let place = format!("t.yaml:{path}: ");
            assert!(faults.contains(&place) && faults.contains(expected), "{throttle}: {faults}");
        }
    }

    #[test]
    fn a_token_source_and_the_policy_name_are_required() {
        let faults = compile("max_active: 10}\nclient: {token: []").unwrap_err();
        assert!(faults.contains("`client.token`"), "{faults}");
        let limits = "max_active: 10}\nlimits: {active-users: {quota: 1, window: 1s}";
        let faults = compile(limits).unwrap_err();
        assert!(faults.contains("another name"), "{faults}");
    }

    #[test]
    fn a_route_with_a_fixed_response_is_noted() {
        let notes = compile("max_active: 10").unwrap().notes;
        let notes: Vec<String> = notes.iter().map(ToString::to_string).collect();
        assert_eq!(notes.len(), 1, "{notes:?}");
        assert!(notes[0].starts_with("t.yaml:7:"), "{notes:?}");
        let text = format!("workers: 1\n{ROUTES}");
        let loaded = config::parse("t.yaml", &text).unwrap();
        assert!(Snapshot::compile(&loaded).unwrap().notes.is_empty(), "no throttle, no note");
    }
}
