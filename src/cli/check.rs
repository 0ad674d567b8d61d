//! `tidegate check`: prints the faults of a configuration, or a summary of it.

use std::io::{self, Write};
use std::path::Path;

use super::{Exit, exit_after_write};
use crate::clock::Clock;
use crate::config::{
    AlgorithmConfig, DomainLimitConfig, EnvLookup, Fault, Faults, FixedAnswer, LimitConfig,
    Listener, LoadedConfig, LogDestination, MatchValue, RateLimitServiceConfig, RedirectHttps,
    RouteActionConfig, RouteMatch, SecretError, SecretReference,
};
use crate::overrides::read_file;
use crate::secret::MIN_LEN;
use crate::sensitive::{MASK, is_sensitive_name, is_sensitive_value, mask_forms, mask_url};
use crate::snapshot::{OverrideTable, Snapshot};
use crate::throttle::ThrottleSettings;
use crate::time::Millis;

/// The beginning of a line on a missing file, folder or secret. It is no note: the configuration is
/// right, and may be for another machine.
const MISSING_HERE: &str = "missing on this machine, and needed to start";

/// Loads the configuration at `path`, and prints every fault, or a summary.
///
/// A missing secret is no fault, because the gateway may run on another machine that has it.
pub(super) fn run(path: &Path, env: EnvLookup<'_>, clock: &Clock, out: &mut dyn Write) -> Exit {
    match Snapshot::load(path, env) {
        Ok((loaded, snapshot)) => {
            if let Some(faults) = secret_fault(&loaded, env) {
                return exit_after_write(writeln!(out, "{faults}"), Exit::BadInput);
            }
            if let Err(faults) = snapshot.consumers.load() {
                // The file's name may be a variable's value.
                let faults = faults.to_string();
                let shown = loaded.source.mask_message(&faults);
                return exit_after_write(writeln!(out, "{shown}"), Exit::BadInput);
            }
            let overrides = match override_notes(&loaded, &snapshot) {
                Ok(notes) => notes,
                Err(faults) => {
                    let faults = faults.to_string();
                    let shown = loaded.source.mask_message(&faults);
                    return exit_after_write(writeln!(out, "{shown}"), Exit::BadInput);
                }
            };
            let certificates = snapshot.certificate_notes(&loaded.source, clock.store_time());
            let notes = snapshot.notes.iter().chain(&certificates);
            let result = print_summary(path, &loaded, &snapshot, out)
                .and_then(|()| print_notes(notes, out))
                .and_then(|()| print_override_notes(&overrides, out))
                .and_then(|()| print_missing_secrets_and_files(&loaded, env, out));
            exit_after_write(result, Exit::Ok)
        }
        Err(error) => exit_after_write(writeln!(out, "{error}"), Exit::from_load_error(&error)),
    }
}

/// What answers the requests of a route.
fn action_summary(action: RouteActionConfig<'_>) -> String {
    match action {
        RouteActionConfig::Upstream(name) => name.to_owned(),
        RouteActionConfig::Redirect(to) => format!("{} {}", to.status.0, mask_url(&to.to)),
        RouteActionConfig::Respond(fixed) => fixed.status.0.to_string(),
        RouteActionConfig::Status(limits) => format!("status of {}", limits.join(", ")),
        RouteActionConfig::Decide(decide) => match decide.refuse_status.0 {
            403 => "a decision, refusals as 403".to_owned(),
            _ => "a decision".to_owned(),
        },
    }
}

/// The listener of the rate limit service, and its domains.
fn service_summary(service: &RateLimitServiceConfig) -> Vec<String> {
    let tls = if service.tls.is_some() { " with TLS" } else { "" };
    let mut lines = vec![format!("rate limit service {}{tls}", service.address)];
    lines.extend(service.domains.iter().map(|(name, domain)| {
        let limits = match &domain.file {
            Some(file) => format!("limits of {}", file.display()),
            None => domain.limits.iter().map(domain_limit).collect::<Vec<_>>().join(", "),
        };
        format!("domain {name}: {limits}")
    }));
    lines
}

/// One limit of a domain, with the values of its descriptors.
fn domain_limit(item: &DomainLimitConfig) -> String {
    let name = match (&item.limit, item.quota) {
        (Some(name), _) => name,
        (None, Some(FixedAnswer::Blocked)) => "blocked",
        (None, _) => "unlimited",
    };
    if item.matches.is_empty() {
        return name.to_owned();
    }
    let values = item.matches.iter().map(|(name, value)| {
        let value = if is_sensitive_name(name) { MASK } else { value };
        format!("{name}={value}")
    });
    format!("{name} if {}", values.collect::<Vec<_>>().join(" and "))
}

/// Prints the counts, listeners, limits, routes and throttle of a valid configuration.
fn print_summary(
    path: &Path,
    loaded: &LoadedConfig,
    snapshot: &Snapshot,
    out: &mut dyn Write,
) -> io::Result<()> {
    let path = path.display();
    let counts = [
        count(snapshot.routes.len(), "route"),
        count(snapshot.limits.len(), "limit"),
        count(snapshot.upstreams.len(), "upstream"),
    ];
    writeln!(out, "{path}: ok ({})", counts.join(", "))?;
    let config = &loaded.config;
    let listeners = config.listen.iter().map(listener_summary);
    let admin = config.admin.iter().map(|admin| format!("admin {}", admin.address));
    let limits = config.limits.iter().map(|(name, limit)| limit_summary(name, limit));
    let service = config.rate_limit_service.iter().flat_map(service_summary);
    for line in listeners.chain(admin).chain(service).chain(limits) {
        writeln!(out, "  {}", shown(loaded, &line))?;
    }
    for (route, compiled) in loaded.config.routes.iter().zip(&snapshot.routes) {
        let host = route.matches.host.as_deref().unwrap_or("*");
        let methods: Vec<&str> = route.matches.methods.iter().map(|m| m.0.as_str()).collect();
        let methods = if methods.is_empty() { "any".to_owned() } else { methods.join(",") };
        let limits =
            if route.limits.is_empty() { "no limit".to_owned() } else { route.limits.join(", ") };
        let (name, path) = (&route.name, compiled.edits.pattern.as_str());
        let action = route.action().map(action_summary).unwrap_or_default();
        let conditions = route_conditions(&route.matches);
        let line = format!("{name}: {methods} {host}{path}{conditions} -> {action} ({limits})");
        writeln!(out, "  {}", shown(loaded, &line))?;
    }
    if let Some(throttle) = &snapshot.throttle {
        let throttle = throttle_summary(throttle);
        writeln!(out, "  throttle: {}", loaded.source.mask_values(&throttle))?;
    }
    if snapshot.consumers.is_redis() {
        writeln!(out, "  consumers: in Redis; each is read when it sends a request")?;
    }
    if let Some(traces) = &loaded.config.traces {
        let line = format!("traces: {} % to {}", traces.sample * 100.0, traces.endpoint);
        writeln!(out, "  {}", shown(loaded, &line))?;
    }
    Ok(())
}

/// A line of values of the configuration. Values of variables and credentials are left out.
fn shown(loaded: &LoadedConfig, line: &str) -> String {
    mask_forms(&loaded.source.mask_values(line)).into_owned()
}

/// A listener's address, and its protocols except for HTTP/1.1 in clear.
fn listener_summary(listener: &Listener) -> String {
    let has_tls = listener.tls.is_some();
    let protocols = [
        has_tls.then_some("TLS"),
        listener.http2.unwrap_or(has_tls).then_some("HTTP/2"),
        listener.proxy_protocol.is_some().then_some("PROXY protocol"),
        (listener.redirect_https != RedirectHttps::Off).then_some("redirects to https"),
    ];
    let protocols: Vec<&str> = protocols.into_iter().flatten().collect();
    let separator = if protocols.is_empty() { "" } else { ": " };
    format!("listen {}{separator}{}", listener.address, protocols.join(", "))
}

/// A limit's quota, key and options.
fn limit_summary(name: &str, limit: &LimitConfig) -> String {
    let (quota, window) = (limit.quota, limit.window);
    let counts = match limit.algorithm {
        AlgorithmConfig::SlidingWindow => format!("{quota} in {window}"),
        AlgorithmConfig::SlidingLog => format!("{quota} in {window}, as a log"),
        AlgorithmConfig::FixedWindow => match limit.calendar() {
            None => format!("{quota} in each {window}"),
            Some(calendar) => format!("{quota} in each {calendar}"),
        },
        AlgorithmConfig::TokenBucket => format!("{quota} at once, refilled in {window}"),
        AlgorithmConfig::LeakyBucket => format!("{quota} in {window}, at a constant rate"),
        AlgorithmConfig::Concurrency => format!("{quota} in flight"),
    };
    let key: Vec<String> = limit.key.iter().map(ToString::to_string).collect();
    let key = if key.is_empty() {
        "all callers together".to_owned()
    } else {
        format!("by {}", key.join(" and "))
    };
    let shadow = if limit.enforce { "" } else { "; refuses none" };
    format!("limit {name}: {counts}, {key}{shadow}")
}

/// A summary of the conditions beyond host, path and methods.
fn route_conditions(matches: &RouteMatch) -> String {
    let headers = matches.headers.iter().map(|(name, value)| ("header", name, value));
    let query = matches.query.iter().map(|(name, value)| ("query", name, value));
    let tests = headers.chain(query).map(|(kind, name, value)| match value {
        MatchValue::Text(text) if is_sensitive_name(name) || is_sensitive_value(text) => {
            format!("{kind} {name}: {MASK}")
        }
        MatchValue::Text(text) => format!("{kind} {name}: {text}"),
        MatchValue::Sent(true) => format!("{kind} {name}"),
        MatchValue::Sent(false) => format!("no {kind} {name}"),
    });
    let weight = matches.weight.map(|weight| format!("{weight} % of callers"));
    let all: Vec<String> = tests.chain(weight).collect();
    if all.is_empty() { String::new() } else { format!(" [{}]", all.join(", ")) }
}

fn print_notes<'a>(notes: impl Iterator<Item = &'a Fault>, out: &mut dyn Write) -> io::Result<()> {
    for note in notes {
        writeln!(out, "\nnote: {note}")?;
    }
    Ok(())
}

/// The overrides of the file that do not apply with this configuration, each with its line.
///
/// # Errors
///
/// The faults of the file.
fn override_notes(loaded: &LoadedConfig, snapshot: &Snapshot) -> Result<Vec<String>, Faults> {
    let Some(own) = &loaded.config.overrides else { return Ok(Vec::new()) };
    let named = |faults: Faults| faults.of_named_file(&loaded.source, "overrides.file");
    let content = read_file(&own.file).map_err(named)?;
    let table = OverrideTable::new(&content.set, snapshot);
    let line =
        |id| content.lines.iter().find(|(other, _)| *other == id).map_or(1, |(_, line)| *line);
    let notes = table
        .unused()
        .iter()
        .map(|unused| format!("{}:{}: {}", own.file.display(), line(unused.id), unused.fault))
        .map(|note| mask_forms(&loaded.source.mask_message(&note)).into_owned());
    Ok(notes.collect())
}

fn print_override_notes(notes: &[String], out: &mut dyn Write) -> io::Result<()> {
    for note in notes {
        writeln!(out, "\nnote: {note}; this override does not apply")?;
    }
    Ok(())
}

/// The faults of secrets that are readable on this machine but invalid.
fn secret_fault(loaded: &LoadedConfig, env: EnvLookup<'_>) -> Option<Faults> {
    let redis = loaded.config.store.redis.as_ref().and_then(|redis| redis.secret.as_ref());
    let admin = loaded.config.admin.as_ref().and_then(|admin| admin.token.as_ref());
    let secrets: [(_, Option<&SecretReference>); 2] =
        [("store.redis.secret", redis), ("admin.token", admin)];
    secrets.into_iter().find_map(|(path, secret)| {
        let error = secret?.reveal_at_least(MIN_LEN, env).err().filter(SecretError::is_fault)?;
        let expected = format!("at least {MIN_LEN} random bytes");
        Some(loaded.source.fault(path, error.to_string(), &expected).into())
    })
}

/// Prints which secrets and certificates do not exist on this machine.
fn print_missing_secrets_and_files(
    loaded: &LoadedConfig,
    env: EnvLookup<'_>,
    out: &mut dyn Write,
) -> io::Result<()> {
    let LoadedConfig { config, source } = loaded;
    if let LogDestination::File(path) = &config.access_log.to
        && let Some(folder) = path.parent().filter(|folder| *folder != Path::new(""))
        && !folder.is_dir()
    {
        let folder = folder.display().to_string();
        // The folder is only a part of the variable's value.
        let whole = source.mask_values(&path.display().to_string()).into_owned();
        let is_masked = whole != path.display().to_string();
        let folder = if is_masked { format!("of {whole}") } else { folder };
        let folder = mask_forms(&folder);
        writeln!(out, "\n{MISSING_HERE}: the folder {folder} of the access log")?;
    }
    let redis = config.store.redis.as_ref();
    let sentinel = redis.and_then(|redis| redis.sentinel.as_ref()?.password.as_ref());
    let passwords = redis.into_iter().flat_map(|redis| redis.password.iter().chain(&redis.secret));
    let token = config.admin.as_ref().and_then(|admin| admin.token.as_ref());
    let traces = config.traces.iter().flat_map(|traces| traces.headers.values());
    let tokens = config.auth.values().filter_map(|method| method.jwt.as_ref()?.secret.as_ref());
    for secret in passwords.chain(sentinel).chain(token).chain(traces).chain(tokens) {
        if let Err(error) = secret.reveal(env) {
            let error = error.to_string();
            let error = mask_forms(&source.mask_message(&error)).into_owned();
            writeln!(out, "\n{MISSING_HERE}: {error}")?;
        }
    }
    let authorities = redis.and_then(|redis| redis.tls_ca.as_ref());
    if let Some(path) = authorities.filter(|path| !path.is_file()) {
        let path = path.display().to_string();
        let path = shown(loaded, &path);
        writeln!(out, "\n{MISSING_HERE}: the file {path}")?;
    }
    Ok(())
}

/// The throttle's thresholds, memory and filters.
fn throttle_summary(throttle: &ThrottleSettings) -> String {
    let (watermarks, geometry) = (&throttle.watermarks, &throttle.geometry);
    let generations = geometry.complete_generations + 1;
    let minutes = |length: Millis| format!("{}m", length / Millis::from_mins(1));
    let mib = |bytes: u64| bytes.div_ceil(1 << 20);
    let room = throttle.waiting_room.map_or(String::new(), |room| {
        format!(
            "; a waiting room, whose tickets expire after {} s",
            room.ticket_ttl.as_whole_secs()
        )
    });
    format!(
        "on above {} active users, off below {}; {} of memory in {generations} generations of {}; filters \
         of {} MiB for {} tokens a minute, up to {} MiB for more{room}",
        watermarks.max_active,
        watermarks.resume_below,
        minutes(throttle.sizing.memory),
        minutes(geometry.generation_length),
        mib(geometry.bytes()),
        throttle.sizing.capacity,
        mib(geometry.grown(throttle.max_growth()).bytes()),
    )
}

fn count(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}
