//! Callers with another quota.

use std::sync::Arc;

use super::check::Check;
use super::parts::part;
use super::policy::{Tier, Whose};
use super::quota::other_quota;
use crate::config::{self, KeyPart};
use crate::identity::TokenSource;
use crate::limit::Limit;

/// The tiers of the limit at `path`, which counts by `limit`. A faulty one is noted and left out.
pub(super) fn compile(
    check: &mut Check<'_>,
    path: &str,
    written: &config::Limit,
    limit: &Limit,
    sources: &[TokenSource],
) -> Vec<Tier> {
    let tiers = written.tiers.iter().enumerate().filter_map(|(index, tier)| {
        let at = format!("{path}.tiers[{index}]");
        let quota = other_quota(check, path, &format!("{at}.quota"), written, tier.quota);
        let whose = whose(check, &format!("{at}.match"), &tier.matches, sources);
        let quota = quota?;
        let most = Limit { quota, ..limit.clone() }.ceiling();
        let affords = u64::from(limit.cost) <= most;
        let expected = format!("at least the cost, {}: no request would pass", limit.cost);
        check.ensure(affords, &format!("{at}.quota"), &format!("`{}`", tier.quota), &expected);
        Some(Tier { whose: whose?, limit: Arc::new(Limit { quota, ..limit.clone() }) })
    });
    tiers.collect()
}

fn whose(
    check: &mut Check<'_>,
    path: &str,
    written: &config::TierMatch,
    sources: &[TokenSource],
) -> Option<Whose> {
    let values = format!("{path}.values");
    check.ensure(!written.values.is_empty(), &values, "no value", "at least one");
    if written.part == KeyPart::ClientIp {
        let networks = written.values.iter().enumerate().filter_map(|(index, value)| {
            let network = config::network(value);
            let expected = "a network such as 10.0.0.0/8, ::1/128 or a single address";
            check.ensure(network.is_some(), &format!("{values}[{index}]"), value, expected);
            network
        });
        return Some(Whose::Networks(networks.collect()));
    }
    let part = part(check, &format!("{path}.part"), &written.part)?;
    let mut wanted: Vec<Box<[u8]>> = Vec::new();
    for (index, value) in written.values.iter().enumerate() {
        let at = format!("{values}[{index}]");
        // As a request's value is brought into its one form, so that they can be equal.
        match part.given(value, sources) {
            Ok(form) => {
                let expected = "a value: an empty one is whoever leaves it out";
                check.ensure(!form.is_empty(), &at, "no text", expected);
                wanted.push(form.into());
            }
            Err(_) => check.ensure(false, &at, "this value", "one that a request can have"),
        }
    }
    Some(Whose::Part(part, wanted))
}

#[cfg(test)]
mod tests {
    use crate::config;
    use crate::snapshot::{Snapshot, Whose};

    fn compile(limit: &str) -> Result<Snapshot, String> {
        let text = format!(
            "limits: {{one: {{quota: 5, window: 10s, {limit}}}}}
upstreams: {{app: {{targets: [http://h:1]}}}}
routes: [{{name: a, match: {{path: /a}}, upstream: app, limits: [one]}}]
"
        );
        let loaded =
            config::parse("t.yaml", &text).unwrap_or_else(|unread| panic!("{}", unread.faults));
        Snapshot::compile(&loaded).map_err(|faults| faults.to_string())
    }

    fn tier(part: &str, values: &str, quota: u64) -> String {
        format!("tiers: [{{match: {{part: '{part}', values: {values}}}, quota: {quota}}}]")
    }

    #[test]
    fn a_tier_is_the_limit_with_another_quota() {
        let snapshot = compile(&tier("header:x-plan", "[gold]", 50)).unwrap();
        let policy = &snapshot.limits[0];
        let (base, gold) = (&policy.limit, policy.limit(Some(0)));
        assert_eq!((base.quota.limit, gold.quota.limit), (5, 50));
        assert_eq!(base.identity(), gold.identity(), "one record for both");
        assert_eq!(policy.limit(None).quota.limit, 5);
        assert_eq!(policy.limit(Some(7)).quota.limit, 5, "none that there is");
    }

    #[test]
    fn values_have_the_form_of_those_that_requests_have() {
        for (part, written, wanted) in [
            ("token", "' Bearer vip'", &b"vip"[..]),
            ("token", "Basic dTpwYQ", b"u:pa"),
            ("header:x-plan", "'gold '", b"gold"),
            ("cookie:plan", "'a+b'", b"a b"),
            ("host", "'API.example.com.'", b"api.example.com"),
        ] {
            let snapshot = compile(&tier(part, &format!("[{written}]"), 50)).unwrap();
            let Whose::Part(_, values) = &snapshot.limits[0].tiers[0].whose else {
                panic!("{part}")
            };
            assert_eq!(&*values[0], wanted, "{part}");
        }
    }

    #[test]
    fn a_candidate_counts_apart_and_refuses_nobody() {
        let snapshot = compile("candidate: {quota: 2}").unwrap();
        let [live, tried] = &snapshot.routes[0].limits[..] else { panic!("two") };
        assert_ne!(live.policy.limit.identity(), tried.policy.limit.identity());
        assert!(live.policy.limit.enforce && !tried.policy.limit.enforce);
        assert_eq!(&*tried.policy.limit.name, "one~candidate");
    }

    #[test]
    fn what_cannot_be_is_a_fault() {
        for (limit, told) in [
            (tier("header:x-plan", "[]", 50), "at least one"),
            (tier("header:x-plan", "['']", 50), "no text"),
            (tier("header:x-plan", "[gold]", 0), "a quota from 1 to 4294967295"),
            (tier("header:x-plan", "[gold]", 4_294_967_296), "a quota from 1 to 4294967295"),
            (tier("header:x-plan", "[' ']", 50), "no text"),
            (tier("token", "['Bearer a b']", 50), "one that a request can have"),
            (tier("client_ip", "[here]", 50), "a network such as"),
            (format!("cost: 3, {}", tier("host", "[h]", 2)), "at least the cost, 3"),
            ("candidate: {quota: 0}".to_owned(), "a quota from 1 to 4294967295"),
            ("max_cost: 2".to_owned(), "which only a cost from a header has"),
            ("cost: 'header:x-cost', max_cost: 6".to_owned(), "1 to 5"),
            ("cost: 'header:x-cost', max_cost: 0".to_owned(), "1 to 5"),
        ] {
            let faults = compile(&limit).unwrap_err();
            assert!(faults.contains(told) && faults.contains("t.yaml:1:"), "{limit}: {faults}");
        }
    }
}
