//! Notes on routes that restrict clients while another route leads to the same server: a server
//! that decodes `%2F` reads `/admin%2Fusers`, which matches only the other route, as
//! `/admin/users`.

use tidegate_config::{Config, RouteConfig};

use super::section::Section;

/// Adds one note for all routes whose `allow` or `deny` such a path evades. It names the first.
pub(super) fn add(root: &Section<'_>, config: &Config) {
    // Few, also among thousands of routes.
    let all: Vec<&RouteConfig> = config.routes.iter().filter(|route| is_catch_all(route)).collect();
    let evaded = |(index, route): (usize, &RouteConfig)| {
        if !is_restricted(route) {
            return None;
        }
        let around = all.iter().find(|other| leads_around(other, route));
        around.map(|other| (index, other.name.clone()))
    };
    let mut evaded = config.routes.iter().enumerate().filter_map(evaded);
    let Some((index, around)) = evaded.next() else { return };
    let more = match evaded.count() {
        0 => String::new(),
        1 => " (and of another route)".to_owned(),
        others => format!(" (and of {others} other routes)"),
    };
    let route = &config.routes[index];
    let key = if route.allow.is_some() { "allow" } else { "deny" };
    let what = format!(
        "`{key}` of the route `{}`{more} does not apply to a path with `%2F` for a slash, which the route \
         `{around}` forwards to the same upstream",
        route.name,
    );
    let expected = "routes for the server's paths alone, the same networks on both routes, or a server that does \
                    not decode `%2F`";
    root.at("routes").index(index).at(key).note(what, expected);
}

/// True if the route refuses some clients on a part of the paths.
fn is_restricted(route: &RouteConfig) -> bool {
    (route.allow.is_some() || !route.deny.is_empty()) && !is_catch_all(route)
}

/// True if `other`, which matches every path, forwards to the upstream of `route` for clients that
/// `route` refuses on its path.
fn leads_around(other: &RouteConfig, route: &RouteConfig) -> bool {
    let has_its_host = other.matches.host.is_none() || other.matches.host == route.matches.host;
    has_its_host
        && route.upstream.is_some()
        && other.upstream == route.upstream
        && (&other.allow, &other.deny) != (&route.allow, &route.deny)
}

/// True if the route matches every path.
fn is_catch_all(route: &RouteConfig) -> bool {
    match (&route.matches.path, &route.matches.path_prefix) {
        (None, None) => true,
        (Some(path), _) => path.starts_with("/{*") && path.ends_with('}'),
        (None, Some(prefix)) => prefix == "/",
    }
}

#[cfg(test)]
mod tests {
    use tidegate_config as config;

    use crate::snapshot::{SecretReading, Snapshot};

    fn notes(routes: &str) -> Vec<String> {
        let text = format!(
            "upstreams: {{app: {{targets: [http://h:1]}}, b: {{targets: [http://h:2]}}}}\nroutes: [{routes}]\n"
        );
        let loaded = config::parse("t.yaml", &text).unwrap_or_else(|error| panic!("{error}"));
        let snapshot = Snapshot::compile(&loaded, SecretReading::Unread)
            .unwrap_or_else(|faults| panic!("{faults}"));
        snapshot.notes.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_route_around_restricted_ones_is_noted_once() {
        let admin =
            "{name: admin, match: {path_prefix: /admin}, upstream: app, allow: [10.0.0.0/8]}";
        let denied = "{name: denied, match: {path: /x}, upstream: app, deny: [10.0.0.0/8]}";
        for all in ["", "match: {path: '/{*rest}'}, ", "match: {path_prefix: /}, "] {
            let noted = notes(&format!("{admin}, {denied}, {{name: all, {all}upstream: app}}"));
            assert_eq!(noted.len(), 1, "{noted:?}");
            for part in ["t.yaml:2:", "`admin` (and of another route)", "the route `all`"] {
                assert!(noted[0].contains(part), "{part}: {noted:?}");
            }
        }
        for others in [
            "{name: all, upstream: b}",
            "{name: all, upstream: app, allow: [10.0.0.0/8]}",
            "{name: all, match: {host: other.test}, upstream: app}",
            "{name: items, match: {path_prefix: /items}, upstream: app}",
        ] {
            assert_eq!(notes(&format!("{admin}, {others}")), [] as [&str; 0], "{others}");
        }
    }
}
