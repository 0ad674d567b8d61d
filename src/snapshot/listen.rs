//! Checks `listen`, `workers`, `admin` and `http`, and compiles the bounds of client connections.

use super::HttpRules;
use super::check::Check;
use crate::config::{Address, Config, Http, Listener};
use crate::framing::{ClientTimeouts, HeadBounds};

/// Maximum number of worker threads.
const MAX_WORKERS: usize = 1024;
/// Valid values of `http.max_head`, in bytes: a smaller bound refuses ordinary requests, a larger one only
/// wastes memory.
const HEAD_BYTES: std::ops::RangeInclusive<u64> = 8 << 10..=1 << 20;

pub(super) fn check(check: &mut Check<'_>, config: &Config) {
    check.ensure(!config.listen.is_empty(), "listen", "no listener", "at least one address");
    for (index, listener) in config.listen.iter().enumerate() {
        check_listener(check, &format!("listen[{index}]"), listener, &config.listen[..index]);
    }
    if let Some(admin) = &config.admin {
        let taken =
            config.listen.iter().any(|listener| is_conflict(listener.address, admin.address));
        let what = format!("`{}`, which is also in `listen`", admin.address);
        check.ensure(!taken, "admin.address", &what, "an address of its own");
    }
    let workers = config.workers;
    let expected = "0 (one per core) to 1024";
    check.ensure(workers <= MAX_WORKERS, "workers", &format!("`{workers}`"), expected);
    check_http(check, &config.http);
}

fn check_listener(check: &mut Check<'_>, path: &str, listener: &Listener, before: &[Listener]) {
    let is_duplicate = before.iter().any(|other| is_conflict(other.address, listener.address));
    let what = format!("duplicate address `{}`", listener.address);
    check.ensure(!is_duplicate, &format!("{path}.address"), &what, "each address once");
    if listener.tls.is_some() {
        check.unsupported(&format!("{path}.tls"), "`tls`", "plain HTTP, without `tls`");
    }
    if listener.proxy_protocol {
        check.unsupported(&format!("{path}.proxy_protocol"), "`proxy_protocol`", "false");
    }
}

/// Compiles the bounds of client connections.
pub(super) fn http_rules(http: &Http) -> HttpRules {
    HttpRules {
        head: HeadBounds { bytes: http.max_head.0 as usize, headers: http.max_headers as usize },
        timeouts: ClientTimeouts {
            head: http.head_timeout.millis(),
            idle: http.idle_timeout.millis(),
            body: http.body_timeout.millis(),
        },
        max_connections: http.max_connections as usize,
        max_connections_per_client: http.max_connections_per_client.0,
        max_requests_per_connection: http.max_requests_per_connection.0,
        merge_slashes: http.merge_slashes,
    }
}

/// True if the addresses cannot both be bound. Port 0 binds a different free port each time.
fn is_conflict(a: Address, b: Address) -> bool {
    a == b && a.0.port() != 0
}

fn check_http(check: &mut Check<'_>, http: &Http) {
    check.ensure_positive_timeout("http.head_timeout", http.head_timeout);
    check.ensure_positive_timeout("http.idle_timeout", http.idle_timeout);
    check.ensure_positive_timeout("http.body_timeout", http.body_timeout);
    let head = http.max_head;
    let is_valid = HEAD_BYTES.contains(&head.0);
    check.ensure(is_valid, "http.max_head", &format!("`{head}`"), "8KiB to 1MiB");
    let is_valid = (1..=1024).contains(&http.max_headers);
    check.ensure(is_valid, "http.max_headers", &format!("`{}`", http.max_headers), "1 to 1024");
    check.ensure(http.max_connections > 0, "http.max_connections", "`0`", "at least 1");
}
