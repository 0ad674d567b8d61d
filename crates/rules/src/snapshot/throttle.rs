//! Compiles the `throttle` section: active-user admission control.

use tidegate_base::time::Millis;
use tidegate_config::{self as config, Config};
use tidegate_identity::CredentialSource;
use tidegate_throttle::{
    Geometry, POLICY, ThrottleSettings,
    geometry::Sizing,
    mode::{ThrottleMode, Watermarks},
    waiting_room::RoomSettings,
};

use super::error_bodies::{ErrorBody, waiting_page};
use super::priorities;
use super::section::Section;

/// What clients see of the waiting room.
#[derive(Debug)]
pub struct WaitingRoomRules {
    /// The name of the cookie that carries a ticket.
    pub cookie: Box<str>,
    /// Its attributes.
    pub attributes: TicketAttributes,
    /// The operator's page for browsers; `None` for the gateway's own.
    pub page: Option<ErrorBody>,
}

/// The attributes of the cookie with a ticket, from the first semicolon on. A browser keeps it as
/// long as a ticket is valid.
#[derive(Debug)]
pub struct TicketAttributes {
    /// On a connection without TLS.
    pub in_clear: Box<str>,
    /// On a connection with TLS: browsers send the cookie over TLS only.
    pub over_tls: Box<str>,
}

impl TicketAttributes {
    /// The attributes of the cookie `name`, which a browser keeps for `max_age`.
    fn new(name: &str, max_age: Millis) -> Self {
        let max_age = max_age.as_whole_secs();
        let in_clear = format!("; Path=/; Max-Age={max_age}; HttpOnly; SameSite=Lax");
        let over_tls = format!("{in_clear}; Secure");
        // Browsers drop a cookie with one of these names without `Secure` (RFC 6265bis, 4.1.3).
        let name = name.to_ascii_lowercase();
        let needs_secure = name.starts_with("__host-") || name.starts_with("__secure-");
        let in_clear = if needs_secure { over_tls.clone() } else { in_clear };
        Self { in_clear: in_clear.into(), over_tls: over_tls.into() }
    }
}

/// Compiles `throttle.waiting_room`; `None` without one.
pub(super) fn compile_waiting_room(
    root: &Section<'_>,
    config: &Config,
) -> Option<WaitingRoomRules> {
    let configured = config.throttle.as_ref()?.waiting_room.as_ref()?;
    let section = root.at("throttle").at("waiting_room");
    let page = configured.page.as_ref().and_then(|path| waiting_page(&section.at("page"), path));
    let name = &configured.cookie.0;
    let tokens = &config.client.token;
    let is_token =
        |source: &CredentialSource| matches!(source, CredentialSource::Cookie(own) if own == name);
    let what = format!("`{name}`, a cookie of `client.token`");
    section.at("cookie").ensure(!tokens.iter().any(is_token), &what, "another name");
    if config.store.redis.as_ref().is_some_and(|redis| redis.secret.is_none()) {
        let what = "tickets are signed with a key that follows from the namespace, so clients can make their own";
        section.note_at_key(what, "`secret` in `store.redis`, the same on all gateways");
    }
    let max_age = configured.ticket_ttl.millis();
    Some(WaitingRoomRules {
        cookie: name.as_str().into(),
        attributes: TicketAttributes::new(name, max_age),
        page,
    })
}

/// The settings of the waiting room.
fn room_settings(
    section: &Section<'_>,
    configured: &config::ThrottleConfig,
) -> Option<RoomSettings> {
    let room = configured.waiting_room.as_ref()?;
    let section = section.at("waiting_room").at("ticket_ttl");
    let ticket_ttl = room.ticket_ttl.millis();
    let what = format!("`{}`", room.ticket_ttl);
    let is_whole = (ticket_ttl % Millis::from_secs(1)).is_zero();
    section.ensure(is_whole, &what, "whole seconds, from 20s to 1h");
    Some(RoomSettings { ticket_ttl })
}

/// Compiles the section; `None` if it is missing or faulty.
pub(super) fn compile(root: &Section<'_>, config: &Config) -> Option<ThrottleSettings> {
    let configured = config.throttle.as_ref()?;
    let section = &root.at("throttle");
    if config.client.token.is_empty() {
        let what = "`throttle` with an empty `client.token`";
        root.at("client").at("token").fault(
            what,
            "at least one token source in `client.token`, such as header:authorization",
        );
    }
    if !root.at("client").has_key("token") {
        let what = "the throttle recognises users by the `Authorization` header only: browsers with a \
                    session cookie are not among them";
        let expected =
            "`client: {token: [cookie:NAME]}`, or `[header:authorization]` to confirm it";
        section.note_at_key(what, expected);
    }
    if config.limits.contains_key(POLICY) {
        let what = format!("`{POLICY}`, the policy name of the throttle");
        root.at("limits").entry(POLICY).fault_at_key(what, "another name");
    }
    check_fixed_responses(root, config);
    if configured.mode == ThrottleMode::On {
        let what = "`on`: a gateway that starts without active users admits no user";
        section.at("mode").note(what, "`auto`, and `PUT /api/throttle` when it is needed");
    }
    let watermarks = watermarks(section, configured);
    let sizing = sizing(section, configured)?;
    let geometry = match Geometry::new(&sizing) {
        Ok(geometry) => geometry,
        Err(error) => {
            capacity_section(section, configured)
                .fault(error.to_string(), "fewer tokens per minute");
            return None;
        }
    };
    let max_memory = max_memory(section, configured, &geometry);
    let waiting_room = room_settings(section, configured);
    let longest = priorities::longest_head_start(config);
    let head_start = waiting_room.map_or(Millis::ZERO, |room| room.length_of(longest));
    let settings = ThrottleSettings {
        watermarks,
        mode: configured.mode,
        forget_status: config::StatusRange::set(&configured.forget_status),
        sizing,
        geometry,
        max_memory,
        waiting_room,
        head_start,
    };
    let ceiling = settings.max_countable();
    if watermarks.max_active > ceiling {
        let what =
            format!("`{}`, more than filters of this size can estimate", watermarks.max_active);
        let expected = format!("at most {ceiling}, or a higher `capacity`");
        section.at("max_active").fault(what, &expected);
    }
    Some(settings)
}

/// Notes routes with a fixed response, on which no token becomes active.
fn check_fixed_responses(root: &Section<'_>, config: &Config) {
    for (index, route) in config.routes.iter().enumerate() {
        let upstream = route.upstream.as_ref().and_then(|name| config.upstreams.get(name));
        let key = if route.respond.is_some() {
            "respond"
        } else if upstream.is_some_and(|upstream| upstream.respond.is_some()) {
            "upstream"
        } else {
            continue;
        };
        if route.throttle {
            let what = "a fixed response checks no token: this route makes no user active, and refuses new ones while \
                        the throttle is on";
            let section = root.at("routes").index(index).at(key);
            section.note(what, "`throttle: false` on this route");
        }
    }
}

fn watermarks(section: &Section<'_>, configured: &config::ThrottleConfig) -> Watermarks {
    let max_active = configured.max_active;
    // Nine tenths, rounded up: at least 1, so that throttling ends if no user is active.
    let resume_below =
        configured.resume_below.unwrap_or_else(|| max_active - max_active / 10).max(1);
    if let Some(configured) = configured.resume_below {
        let is_valid = configured <= max_active || !section.can_read(&["max_active"]);
        let expected = format!("1 to `max_active`, {max_active}");
        section.at("resume_below").ensure(is_valid, &format!("`{configured}`"), &expected);
    }
    Watermarks { max_active, resume_below }
}

fn sizing(section: &Section<'_>, configured: &config::ThrottleConfig) -> Option<Sizing> {
    let memory = configured.memory.millis();
    let is_whole = (memory % Millis::from_mins(1)).is_zero();
    let what = format!("`{}`", configured.memory);
    section.at("memory").ensure(is_whole, &what, "whole minutes, from 1m to 720h");
    let (capacity, false_positive) = (configured.capacity_or_default(), configured.false_positive);
    let read = ["max_active", "memory", "capacity", "false_positive"];
    let is_valid = is_whole && section.can_read(&read);
    is_valid.then_some(Sizing { capacity, false_positive, memory })
}

/// The key that decides the capacity.
fn capacity_section<'s>(section: &Section<'s>, configured: &config::ThrottleConfig) -> Section<'s> {
    section.at(if configured.capacity.is_some() { "capacity" } else { "max_active" })
}

/// The default of `max_memory`, in multiples of the memory for `capacity`.
const DEFAULT_GROWTH: u32 = 8;

/// The maximum memory of the filters, in bytes. Reports filters of more than three eighths of this
/// machine's memory, because filters of two sizes exist at once while they grow.
fn max_memory(
    section: &Section<'_>,
    configured: &config::ThrottleConfig,
    geometry: &Geometry,
) -> u64 {
    let available = tidegate_throttle::machine_memory::usable().unwrap_or(u64::MAX);
    let allowed = available / 8 * 3;
    let mib = |bytes: u64| bytes.div_ceil(1 << 20);
    let of_machine = format!("three eighths of the {} MiB of this machine", available >> 20);
    if geometry.bytes() > allowed {
        let what = format!("filters of {} MiB", mib(geometry.bytes()));
        let expected =
            format!("at most {of_machine}: fewer tokens per minute, or a higher `false_positive`");
        capacity_section(section, configured).fault(what, &expected);
    }
    let Some(max_memory) = configured.max_memory else {
        return geometry.grown(DEFAULT_GROWTH).bytes().min(allowed).max(geometry.bytes());
    };
    if max_memory.0 < geometry.bytes() {
        let what = format!("`{max_memory}`, less than the filters for `capacity`");
        let expected = format!("at least {}MiB, or a lower `capacity`", mib(geometry.bytes()));
        section.at("max_memory").fault(what, &expected);
    } else if max_memory.0 > allowed {
        let expected = format!("at most {of_machine}");
        section.at("max_memory").fault(format!("`{max_memory}`"), &expected);
    }
    max_memory.0
}

#[cfg(test)]
mod tests {
    use tidegate_base::status::StatusSet;
    use tidegate_base::time::Millis;
    use tidegate_config as config;
    use tidegate_throttle::mode::{ThrottleMode, Watermarks};

    use crate::snapshot::{SecretReading, Snapshot};

    const ROUTES: &str = "\
upstreams:
  app: {targets: [http://h:1]}
  hello: {respond: {}}
routes:
  - {name: app, match: {path: /}, upstream: app}
  - {name: hello, match: {path: /hello}, upstream: hello}
  - {name: health, match: {path: /health}, upstream: hello, throttle: false}
  - {name: own, match: {path: /own}, respond: {}}
  - {name: own-health, match: {path: /own-health}, respond: {}, throttle: false}
";

    fn compile(throttle: &str) -> Result<Snapshot, String> {
        let text = format!("throttle: {{{throttle}}}\n{ROUTES}");
        let loaded = config::parse("t.yaml", &text).unwrap_or_else(|error| panic!("{error}"));
        Snapshot::compile(&loaded, SecretReading::Unread).map_err(|faults| faults.to_string())
    }

    #[test]
    fn missing_keys_have_their_defaults() {
        let settings = compile("max_active: 100").unwrap().throttle.unwrap();
        assert_eq!(settings.watermarks, Watermarks { max_active: 100, resume_below: 90 });
        assert_eq!(
            (settings.mode, settings.forget_status),
            (ThrottleMode::Auto, StatusSet::of([401..=401, 403..=403]))
        );
        assert_eq!(
            (settings.geometry.complete_generations, settings.geometry.generation_length),
            (30, Millis::from_mins(1))
        );
        for (max_active, capacity, kib) in
            [(1, 10_000, 840), (5_000, 10_000, 840), (500_000, 1_000_000, 84_078)]
        {
            let settings = compile(&format!("max_active: {max_active}")).unwrap().throttle.unwrap();
            assert_eq!(settings.sizing.capacity, capacity);
            assert_eq!(settings.geometry.bytes() >> 10, kib, "{max_active}");
            assert_eq!(settings.max_growth(), 8);
        }
        for (max_active, resume_below) in [(1, 1), (9, 9), (10, 9), (11, 10), (1_000_000, 900_000)]
        {
            let settings = compile(&format!("max_active: {max_active}")).unwrap().throttle.unwrap();
            assert_eq!(settings.watermarks.resume_below, resume_below, "{max_active}");
        }
        let long = compile("max_active: 100, memory: 24h, capacity: 1000").unwrap();
        assert_eq!(long.throttle.unwrap().geometry.generation_length, Millis::from_mins(48));
        assert!(
            compile("max_active: 100, mode: 'off'").unwrap().throttle.unwrap().mode
                == ThrottleMode::Off
        );
    }

    #[test]
    fn invalid_values_are_located() {
        for (throttle, path, expected) in [
            ("max_active: 10, resume_below: 11", "1:42", "1 to `max_active`, 10"),
            ("max_active: 10, memory: 90s", "1:36", "whole minutes"),
            ("max_active: 10, capacity: 1000000000", "1:38", "MiB of this machine"),
            ("max_active: 1000000, capacity: 1000", "1:24", "or a higher `capacity`"),
            ("max_active: 900000000000", "1:24", "MiB of this machine"),
            ("max_active: 10, max_memory: 100KiB", "1:40", "at least 1MiB"),
            ("max_active: 10, max_memory: 900000GiB", "1:40", "MiB of this machine"),
        ] {
            let faults = compile(throttle).unwrap_err();
            let place = format!("t.yaml:{path}: ");
            assert!(faults.contains(&place) && faults.contains(expected), "{throttle}: {faults}");
        }
    }

    #[test]
    fn a_token_source_is_required_and_the_policy_name_is_reserved() {
        let faults = compile("max_active: 10}\nclient: {token: []").unwrap_err();
        assert!(faults.contains("`client.token`"), "{faults}");
        let limits = "max_active: 10}\nlimits: {active-users: {quota: 1, window: 1s}";
        let faults = compile(limits).unwrap_err();
        assert!(faults.contains("another name"), "{faults}");
    }

    #[test]
    fn a_route_with_a_fixed_response_is_noted() {
        let token = "max_active: 10}\nclient: {token: [cookie:session]";
        let notes = compile(token).unwrap().notes;
        let notes: Vec<String> = notes.iter().map(ToString::to_string).collect();
        assert_eq!(notes.len(), 2, "{notes:?}");
        assert!(notes[0].starts_with("t.yaml:8:"), "{notes:?}");
        assert!(notes[1].starts_with("t.yaml:10:"), "{notes:?}");
        let text = format!("workers: 1\n{ROUTES}");
        let loaded = config::parse("t.yaml", &text).unwrap();
        assert!(
            Snapshot::compile(&loaded, SecretReading::Unread).unwrap().notes.is_empty(),
            "no throttle, no note"
        );
    }

    #[test]
    fn a_throttle_without_a_configured_token_is_noted() {
        let has_note = |text: &str| {
            let notes = compile(text).unwrap().notes;
            notes.iter().any(|note| note.to_string().contains("session cookie"))
        };
        assert!(has_note("max_active: 10"));
        for token in ["header:authorization", "cookie:session"] {
            assert!(
                !has_note(&format!("max_active: 10}}\nclient: {{token: ['{token}']")),
                "{token}"
            );
        }
    }
}
