//! Helpers that encode metrics in `OpenMetrics` text format.

use std::fmt;

use prometheus_client::{
    encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet},
    metrics::MetricType,
};

/// Starts a family of counters.
pub(super) fn start_counters<'e>(
    encoder: &'e mut DescriptorEncoder<'_>,
    name: &'e str,
    help: &str,
) -> Result<MetricEncoder<'e>, fmt::Error> {
    encoder.encode_descriptor(name, help, None, MetricType::Counter)
}

/// Writes the counter of `family` with these labels. A family without labels has one counter.
pub(super) fn write_counter(
    family: &mut MetricEncoder<'_>,
    labels: &[(&str, &str)],
    value: u64,
) -> fmt::Result {
    if labels.is_empty() {
        return family.encode_counter::<NoLabelSet, u64, u64>(&value, None);
    }
    family.encode_family(&labels)?.encode_counter::<NoLabelSet, u64, u64>(&value, None)
}

/// Writes a gauge without labels.
pub(super) fn write_gauge(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    value: u64,
) -> fmt::Result {
    let value = i64::try_from(value).unwrap_or(i64::MAX);
    encoder.encode_descriptor(name, help, None, MetricType::Gauge)?.encode_gauge(&value)
}

/// Writes a gauge of a share, from 0 to 1, without labels.
pub(super) fn write_ratio(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    value: f64,
) -> fmt::Result {
    encoder.encode_descriptor(name, help, None, MetricType::Gauge)?.encode_gauge(&value)
}
