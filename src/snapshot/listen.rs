//! Checks `listen` and `admin`, and compiles the bounds of client connections.

use super::HttpRules;
use super::fault_collector::FaultCollector;
use crate::config::{Address, Config, Http, Listener};
use crate::framing::{ClientTimeouts, HeadBounds};

pub(super) fn check(collector: &mut FaultCollector<'_>, config: &Config) {
    collector.ensure(!config.listen.is_empty(), "listen", "no listener", "at least one address");
    for (index, listener) in config.listen.iter().enumerate() {
        let path = format!("listen[{index}].address");
        let what = format!("duplicate address `{}`", listener.address);
        let is_duplicate = is_taken(collector, &config.listen[..index], listener.address);
        collector.ensure(!is_duplicate, &path, &what, "each address once");
    }
    if let Some(admin) = &config.admin {
        let what = format!("`{}`, which is also in `listen`", admin.address);
        let is_taken = is_taken(collector, &config.listen, admin.address);
        collector.ensure(!is_taken, "admin.address", &what, "an address of its own");
    }
}

/// True if one of `listeners` has the address. Their indices must be those of `listen`. Port 0 is never
/// taken: it binds a different free port each time.
fn is_taken(collector: &FaultCollector<'_>, listeners: &[Listener], address: Address) -> bool {
    let mut listeners = listeners.iter().enumerate();
    listeners.any(|(index, listener)| {
        let is_same = listener.address == address && address.0.port() != 0;
        is_same && collector.can_read(&format!("listen[{index}]"), &["address"])
    })
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
