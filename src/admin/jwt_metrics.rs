//! The metrics of key sets in `GET /metrics`.

use std::fmt;

use prometheus_client::{encoding::DescriptorEncoder, metrics::MetricType};

use super::encode::{start_counters, write_counter};
use crate::{gateway::Shared, time::UnixSeconds};

pub(super) fn encode(shared: &Shared, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let snapshot = shared.live.snapshot();
    let methods: Vec<_> = snapshot
        .auth_methods
        .iter()
        .filter_map(|method| {
            let jwt = method.jwt()?;
            // A file is read with the configuration.
            jwt.server()?;
            Some((&*method.name, jwt.keys()?))
        })
        .collect();
    let help = "Failed attempts to fetch the key set of a method, by method";
    let mut family = start_counters(encoder, "jwt_key_set_failures", help)?;
    for (method, keys) in &methods {
        write_counter(&mut family, &[("method", method)], keys.failures())?;
    }
    let help = "When the key set of a method was fetched last, in seconds since the epoch";
    let mut family = encoder.encode_descriptor(
        "jwt_key_set_fetched_timestamp_seconds",
        help,
        None,
        MetricType::Gauge,
    )?;
    for (method, keys) in &methods {
        let Some(fetched) = keys.fetched() else { continue };
        let seconds = i64::try_from(UnixSeconds::of(fetched).as_secs()).unwrap_or(i64::MAX);
        family.encode_family(&[("method", *method)])?.encode_gauge(&seconds)?;
    }
    Ok(())
}
