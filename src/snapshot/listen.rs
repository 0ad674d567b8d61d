//! Listeners, workers and what a connection may cost: checked here.

use super::HttpRules;
use super::check::Check;
use crate::config::{Address, Config, Http, Listener};
use crate::framing::{Deadlines, HeadBounds};

const MAX_WORKERS: usize = 1024;
/// Below it honest requests are refused; above it one head takes more than any needs.
const HEAD_BYTES: std::ops::RangeInclusive<u64> = 8 << 10..=1 << 20;

pub(super) fn check(check: &mut Check<'_>, config: &Config) {
    check.ensure(!config.listen.is_empty(), "listen", "no listener", "at least one address");
    for (index, listener) in config.listen.iter().enumerate() {
        one(check, &format!("listen[{index}]"), listener, &config.listen[..index]);
    }
    if let Some(admin) = &config.admin {
        let taken = config.listen.iter().any(|listener| same(listener.address, admin.address));
        let what = format!("`{}` again", admin.address);
        check.ensure(!taken, "admin.address", &what, "an address that clients do not connect to");
    }
    let workers = config.workers;
    let expected = "0 (one a core) to 1024";
    check.ensure(workers <= MAX_WORKERS, "workers", &format!("`{workers}`"), expected);
    http(check, &config.http);
}

fn one(check: &mut Check<'_>, path: &str, listener: &Listener, before: &[Listener]) {
    let again = before.iter().any(|other| same(other.address, listener.address));
    let what = format!("`{}` again", listener.address);
    check.ensure(!again, &format!("{path}.address"), &what, "each address once");
    if listener.tls.is_some() {
        check.unbuilt(&format!("{path}.tls"), "`tls`", "plain HTTP, without `tls`");
    }
    if listener.proxy_protocol {
        check.unbuilt(&format!("{path}.proxy_protocol"), "`proxy_protocol`", "false");
    }
}

/// What clients' connections are held to.
pub(super) fn http_rules(http: &Http) -> HttpRules {
    HttpRules {
        head: HeadBounds { bytes: http.max_head.0 as usize, headers: http.max_headers as usize },
        deadlines: Deadlines {
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

/// Whether both could not be listened on; port 0 is a free one each time.
fn same(a: Address, b: Address) -> bool {
    a == b && a.0.port() != 0
}

fn http(check: &mut Check<'_>, http: &Http) {
    check.some_timeout("http.head_timeout", http.head_timeout);
    check.some_timeout("http.idle_timeout", http.idle_timeout);
    check.some_timeout("http.body_timeout", http.body_timeout);
    let head = http.max_head;
    let sound = HEAD_BYTES.contains(&head.0);
    check.ensure(sound, "http.max_head", &format!("`{head}`"), "8KiB to 1MiB");
    let sound = (1..=1024).contains(&http.max_headers);
    check.ensure(sound, "http.max_headers", &format!("`{}`", http.max_headers), "1 to 1024");
    check.ensure(http.max_connections > 0, "http.max_connections", "`0`", "at least 1");
}
