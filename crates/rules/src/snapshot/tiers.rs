//! Compiles the tiers of a limit.

use std::sync::Arc;

use tidegate_charge::Limit;
use tidegate_config as config;
use tidegate_identity::{CredentialSource, KeyPart};
use tidegate_route::PathPattern;

use super::policy::{Tier, TierMatch};
use super::quota::{QUOTA_KEYS, alternative_quota};
use super::section::Section;

/// Compiles the tiers of `limit`, at `section`. A faulty tier is reported and left out.
pub(super) fn compile(
    section: &Section<'_>,
    configured: &config::LimitConfig,
    limit: &Limit,
    sources: &[CredentialSource],
) -> Vec<Tier> {
    let tiers = configured.tiers.iter().enumerate().filter_map(|(index, tier)| {
        let at = section.at("tiers").index(index);
        let matches = tier_match(&at.at("match"), &tier.matches, sources);
        let units = match tier.quota {
            config::TierQuota::Unlimited => return Some(Tier { matches: matches?, limit: None }),
            config::TierQuota::Units(units) => units,
        };
        let quota = alternative_quota(section, &at.at("quota"), configured, units);
        if limit.cost > quota.capacity()
            && section.can_read(&QUOTA_KEYS)
            && section.can_read(&["cost"])
        {
            let expected =
                format!("at least the cost, {}: no request would be admitted", limit.cost);
            at.at("quota").fault(format!("`{units}`"), &expected);
        }
        let limit = Arc::new(limit.with_quota(quota));
        Some(Tier { matches: matches?, limit: Some(limit) })
    });
    tiers.collect()
}

/// Reports tiers that compare a path parameter that no route of their limit has.
pub(super) fn check_parameters(root: &Section<'_>, config: &config::Config) {
    for (name, limit) in &config.limits {
        let is_of_limit = |route: &&config::RouteConfig| {
            route.limits.iter().chain(route.status.iter().flatten()).any(|other| other == name)
        };
        let routes: Vec<_> = config.routes.iter().filter(is_of_limit).collect();
        let Some(first) = routes.first().map(|route| &route.name) else { continue };
        for (index, tier) in limit.tiers.iter().enumerate() {
            let KeyPart::PathParam(param) = &tier.matches.part else { continue };
            if !routes.iter().any(|route| may_have_parameter(&route.matches, param)) {
                let part = &tier.matches.part;
                let what = match routes.len() {
                    1 => format!("`{part}`, which the path of the route `{first}` does not have"),
                    _ => format!("`{part}`, which no path of the limit's routes has"),
                };
                let section = root.at("limits").entry(name).at("tiers").index(index);
                let expected = section.path_with(part, param);
                section.at("match").at("part").fault(what, &expected);
            }
        }
    }
}

/// True if paths of the route have the parameter, or if its pattern is faulty.
fn may_have_parameter(matches: &config::RouteMatch, param: &String) -> bool {
    let pattern = match (&matches.path, &matches.path_prefix) {
        (Some(path), _) => PathPattern::parse(path),
        (None, Some(prefix)) => PathPattern::prefix(prefix),
        (None, None) => return false,
    };
    pattern.map_or(true, |pattern| pattern.params().contains(param))
}

fn tier_match(
    section: &Section<'_>,
    configured: &config::TierMatchConfig,
    sources: &[CredentialSource],
) -> Option<TierMatch> {
    let values = section.at("values");
    values.ensure(!configured.values.is_empty(), "no value", "at least one");
    if !section.can_read(&["part"]) {
        return None;
    }
    if configured.part == KeyPart::ClientIp {
        let networks = configured.values.iter().enumerate().filter_map(|(index, value)| {
            let network = config::parse_network(value);
            let expected = "a network such as 10.0.0.0/8, ::1/128 or a single address";
            let what = format!("`{value}`");
            values.index(index).ensure(network.is_some(), &what, expected);
            network
        });
        return Some(TierMatch::Networks(networks.collect()));
    }
    let part = configured.part.clone();
    let mut wanted: Vec<Box<[u8]>> = Vec::new();
    for (index, value) in configured.values.iter().enumerate() {
        let at = values.index(index);
        // Normalized like the values of requests, so that they compare equal.
        match part.canonical_input(value, sources) {
            Ok(form) => {
                let expected = "a non-empty value: a part that the request does not have is empty";
                at.ensure(!form.is_empty(), "an empty value", expected);
                wanted.push(form.into());
            }
            Err(_) => at.ensure(false, "this value", "a value that a request can have"),
        }
    }
    Some(TierMatch::Part(part, wanted))
}

#[cfg(test)]
mod tests {
    use tidegate_config as config;

    use crate::snapshot::{QuotaChoice, SecretReading, Snapshot, TierMatch};

    fn compile(limit: &str) -> Result<Snapshot, String> {
        let text = format!(
            "limits: {{one: {{quota: 5, window: 10s, {limit}}}}}
upstreams: {{app: {{targets: [http://h:1]}}}}
routes: [{{name: a, match: {{path: /a}}, upstream: app, limits: [one]}}]
"
        );
        let loaded = config::parse("t.yaml", &text).unwrap_or_else(|error| panic!("{error}"));
        Snapshot::compile(&loaded, SecretReading::Unread).map_err(|faults| faults.to_string())
    }

    fn tier(part: &str, values: &str, quota: u64) -> String {
        format!("tiers: [{{match: {{part: '{part}', values: {values}}}, quota: {quota}}}]")
    }

    #[test]
    fn a_tier_is_the_limit_with_another_quota() {
        let snapshot = compile(&tier("header:x-plan", "[gold]", 50)).unwrap();
        let policy = &snapshot.limits[0];
        let (base, gold) = (&policy.limit, policy.limit_with(&QuotaChoice::Tier(0)));
        assert_eq!((base.quota.limit, gold.quota.limit), (5, 50));
        assert_eq!(base.identity, gold.identity, "both share one counter");
        assert_eq!(policy.limit_with(&QuotaChoice::Own).quota.limit, 5);
        assert_eq!(policy.limit_with(&QuotaChoice::Tier(7)).quota.limit, 5, "no such tier");
    }

    #[test]
    fn an_unlimited_tier_has_no_limit() {
        let tiers = "tiers: [{match: {part: client_ip, values: [10.0.0.1]}, quota: unlimited}]";
        for limit in [tiers.to_owned(), format!("cost: 3, {tiers}, candidate: {{quota: 4}}")] {
            let snapshot = compile(&limit).unwrap();
            for policy in &snapshot.routes[0].limits {
                assert!(policy.tiers[0].limit.is_none(), "{limit}");
                assert_eq!(
                    policy.limit_with(&QuotaChoice::Tier(0)).name(),
                    policy.limit.name(),
                    "{limit}"
                );
            }
        }
        for quota in ["none", "0", "9007199254740992", "-1", "'5'", "Unlimited"] {
            let text = tiers.replace("unlimited", quota);
            let faults = config::parse(
                "t.yaml",
                &format!("limits: {{one: {{quota: 5, window: 10s, {text}}}}}\n"),
            );
            let faults = faults.unwrap_err().to_string();
            assert!(faults.contains("9007199254740991, or unlimited"), "{quota}: {faults}");
        }
    }

    #[test]
    fn values_are_normalized_like_those_of_requests() {
        for (part, configured, wanted) in [
            ("token", "' Bearer vip'", &b"vip"[..]),
            ("token", "Basic dTpwYQ", b"u:pa"),
            ("header:x-plan", "'gold '", b"gold"),
            ("cookie:plan", "'a+b'", b"a b"),
            ("host", "'API.example.com.'", b"api.example.com"),
        ] {
            let snapshot = compile(&tier(part, &format!("[{configured}]"), 50)).unwrap();
            let TierMatch::Part(_, values) = &snapshot.limits[0].tiers[0].matches else {
                panic!("{part}")
            };
            assert_eq!(&*values[0], wanted, "{part}");
        }
    }

    #[test]
    fn a_path_parameter_of_a_tier_is_one_of_a_route() {
        let faults = |tier_part: &str, routes: &str| {
            let text = format!(
                "limits: {{one: {{quota: 5, window: 10s, {}}}}}\nupstreams: {{app: {{targets: [http://h:1]}}}}\n\
                 routes: [{routes}]\n",
                tier(tier_part, "[a]", 50)
            );
            let loaded = config::parse("t.yaml", &text).unwrap_or_else(|error| panic!("{error}"));
            Snapshot::compile(&loaded, SecretReading::Unread)
                .map_or_else(|faults| faults.to_string(), |_| String::new())
        };
        let route = |name: &str, matches: &str| {
            format!("{{name: {name}, match: {{{matches}}}, upstream: app, limits: [one]}}")
        };
        let [plain, with] = [route("a", ""), route("b", "path: '/b/{zz}'")];
        let alone = faults("path:zz", &plain);
        let expected =
            "`path:zz`, which the path of the route `a` does not have, expected a path with `{zz}`";
        assert!(alone.contains(expected) && alone.contains("t.yaml:1:"), "{alone}");
        assert!(faults("path:yy", &format!("{plain}, {with}")).contains("no path of the limit's"));
        assert_eq!(faults("path:zz", &format!("{plain}, {with}")), "", "one of two routes has it");
        assert_eq!(faults("path:rest", &route("a", "path_prefix: /v1")), "");
    }

    #[test]
    fn a_candidate_is_counted_separately_and_never_enforced() {
        let snapshot = compile("candidate: {quota: 2}").unwrap();
        let [live, candidate] = &snapshot.routes[0].limits[..] else { panic!("two limits") };
        assert_ne!(live.limit.identity, candidate.limit.identity);
        assert!(live.limit.enforce && !candidate.limit.enforce);
        assert_eq!(candidate.limit.name(), "one~candidate");
    }

    #[test]
    fn invalid_tiers_and_costs_are_refused() {
        for (limit, expected) in [
            (tier("header:x-plan", "[]", 50), "at least one"),
            (tier("header:x-plan", "['']", 50), "an empty value"),
            (tier("header:x-plan", "[' ']", 50), "an empty value"),
            (tier("token", "['Bearer a b']", 50), "a value that a request can have"),
            (tier("client_ip", "[here]", 50), "a network such as"),
            (format!("cost: 3, {}", tier("host", "[h]", 2)), "at least the cost, 3"),
            ("max_cost: 2".to_owned(), "`max_cost` with a fixed cost"),
            ("cost: 'header:x-cost', max_cost: 6".to_owned(), "1 to 5"),
        ] {
            let faults = compile(&limit).unwrap_err();
            assert!(faults.contains(expected) && faults.contains("t.yaml:1:"), "{limit}: {faults}");
        }
    }
}
