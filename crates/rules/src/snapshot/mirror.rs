//! Compiles a route's `mirror`.

use std::sync::Arc;

use tidegate_config::{self as config, Config};
use tidegate_upstream::Upstream;

use super::section::Section;

/// Compiled rules for copies of a route's requests.
#[derive(Debug)]
pub struct Mirror {
    /// The upstream that they are sent to.
    pub upstream: Arc<Upstream>,
    /// The share of the requests, in percent: 1 to 100.
    pub share: u8,
}

/// Compiles the rules of `route`, at `section`; `find` looks up an upstream by name. Reports an
/// unknown upstream, the route's own, and one with a fixed response. Notes a route that forwards
/// nothing.
pub(super) fn compile<'a>(
    section: &Section<'_>,
    route: &config::RouteConfig,
    config: &Config,
    find: impl FnOnce(&str) -> Option<&'a Arc<Upstream>>,
) -> Option<Mirror> {
    let configured = route.mirror.as_ref()?;
    let is_fixed = |name: &String| {
        config.upstreams.get(name).is_some_and(|upstream| upstream.respond.is_some())
    };
    if route.upstream.as_ref().is_none_or(is_fixed) {
        let what = "`mirror` without effect: the route's requests are not forwarded";
        section.at("mirror").note(what, "an upstream with targets");
    }
    let section = section.at("mirror").at("upstream");
    let name = &configured.upstream;
    section.ensure_reference("upstream", name, &config.upstreams);
    if route.upstream.as_ref() == Some(name) {
        let what = format!("`{name}`, which the requests are sent to already");
        section.fault(what, "another upstream, whose failures do not count for this one");
    } else if is_fixed(name) {
        let what = format!("`{name}`, whose responses the gateway makes itself");
        section.fault(what, "an upstream with targets");
    }
    Some(Mirror { upstream: Arc::clone(find(name)?), share: configured.share })
}
