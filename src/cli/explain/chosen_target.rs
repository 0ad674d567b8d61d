//! The target that the balancer chooses for a request's key.

use crate::balance::{Balancer, EndpointView, PickRequest, TargetKey, WeightedEndpoint};
use crate::upstream::Servers;

/// The target for a request with this key, and the reason, if all targets are in service and
/// without load. Names are not resolved.
pub(super) fn chosen_target(servers: &Servers, key: TargetKey) -> Option<(String, String)> {
    let names: Vec<String> =
        servers.targets.iter().map(|own| own.target.address.to_string()).collect();
    let endpoints: Vec<WeightedEndpoint<'_>> = names
        .iter()
        .zip(&servers.targets)
        .map(|(name, own)| WeightedEndpoint { name, weight: own.weight })
        .collect();
    let input = PickRequest { turn: 0, key, random: 0, excluded: &[] };
    let choice = Balancer::new(servers.policy, &endpoints).choose(&input, &Unloaded)?;
    let name = |index: usize| names[index].as_str();
    Some((names[choice.index].clone(), choice.reason.describe(name).to_string()))
}

/// Targets that are in service and have no load.
struct Unloaded;

impl EndpointView for Unloaded {
    fn is_available(&self, _: usize) -> bool {
        true
    }

    fn in_flight(&self, _: usize) -> u32 {
        0
    }

    fn total_in_flight(&self) -> u64 {
        0
    }
}
