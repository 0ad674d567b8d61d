//! Compiles a route's `mirror`.

use std::sync::Arc;

use super::fault_collector::FaultCollector;
use crate::{
    config::{self, Config},
    upstream::Upstream,
};

/// The copies of a route's requests.
#[derive(Debug)]
pub struct Mirror {
    /// The upstream that they are sent to.
    pub upstream: Arc<Upstream>,
    /// The share of the requests, in per cent: 1 to 100.
    pub share: u8,
}

/// Compiles the rules of `route`, which is at `path`; `find` finds an upstream by its name. Reports an
/// upstream that is unknown, the route's own, or one with a fixed response; notes a route that forwards nothing.
pub(super) fn compile<'a>(
    collector: &mut FaultCollector<'_>,
    path: &str,
    route: &config::Route,
    config: &Config,
    find: impl FnOnce(&str) -> Option<&'a Arc<Upstream>>,
) -> Option<Mirror> {
    let configured = route.mirror.as_ref()?;
    let is_fixed = |name: &String| {
        config.upstreams.get(name).is_some_and(|upstream| upstream.respond.is_some())
    };
    if route.upstream.as_ref().is_none_or(is_fixed) {
        let what = "`mirror` without effect: the route's requests are not forwarded";
        collector.note(&format!("{path}.mirror"), what, "an upstream with targets");
    }
    let path = format!("{path}.mirror.upstream");
    let name = &configured.upstream;
    collector.ensure_reference(&path, "upstream", name, &config.upstreams);
    if route.upstream.as_ref() == Some(name) {
        let what = format!("`{name}`, which the requests are sent to already");
        collector.fault(&path, what, "another upstream, whose failures do not count for this one");
    } else if is_fixed(name) {
        let what = format!("`{name}`, whose responses the gateway makes itself");
        collector.fault(&path, what, "an upstream with targets");
    }
    Some(Mirror { upstream: Arc::clone(find(name)?), share: configured.share })
}
