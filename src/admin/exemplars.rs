//! Exemplars in `OpenMetrics` text: the trace of a request in each histogram bucket. They are added
//! to the text, because the encoder makes exemplars only for its own histogram type.

use std::{collections::BTreeMap, fmt::Write};

use crate::metrics::{Exemplar, LATENCY_BOUNDS};

/// The start of a sample that can have an exemplar.
const BUCKETS: &str = "tidegate_request_duration_seconds_bucket{";

/// `metrics` with `exemplars`, by route and bucket.
pub(super) fn add(metrics: &str, exemplars: &BTreeMap<(Box<str>, usize), Exemplar>) -> String {
    let mut text = String::with_capacity(metrics.len() + exemplars.len() * 100);
    for line in metrics.lines() {
        text.push_str(line);
        let sample = line.strip_prefix(BUCKETS);
        if let Some(exemplar) = sample.and_then(key).and_then(|key| exemplars.get(&key)) {
            let trace_id = String::from_utf8_lossy(&exemplar.trace_id);
            let (value, time) = (exemplar.duration.as_secs_f64(), exemplar.time.as_unix_ms());
            let (seconds, millis) = (time / 1000, time % 1000);
            let _ = write!(text, " # {{trace_id=\"{trace_id}\"}} {value} {seconds}.{millis:03}");
        }
        text.push('\n');
    }
    text
}

/// The route and the bucket of a sample.
fn key(labels: &str) -> Option<(Box<str>, usize)> {
    let value = |name: &str| labels.split_once(name)?.1.split('"').next();
    let bound = value("le=\"")?;
    let bound = if bound == "+Inf" { f64::INFINITY } else { bound.parse().ok()? };
    let bucket = LATENCY_BOUNDS.iter().take_while(|own| **own < bound).count();
    Some((value("route=\"")?.into(), bucket))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::time::StoreTime;

    #[test]
    fn an_exemplar_follows_its_bucket() {
        let exemplar = |millis| Exemplar {
            trace_id: [b'a'; 32],
            duration: Duration::from_millis(millis),
            time: StoreTime::from_unix_ms(1_700_000_000_007),
        };
        let exemplars = BTreeMap::from([
            (("items".into(), 3), exemplar(3)),
            (("items".into(), 16), exemplar(31_000)),
        ]);
        let bucket =
            |le: &str, route: &str| format!("{BUCKETS}le=\"{le}\",route=\"{route}\"}} 1\n");
        let metrics = bucket("0.0025", "items")
            + &bucket("0.005", "items")
            + &bucket("0.005", "rest")
            + &bucket("+Inf", "items")
            + "# EOF\n";
        let id = "a".repeat(32);
        let with = |line: String, value: &str| {
            format!("{} # {{trace_id=\"{id}\"}} {value} 1700000000.007\n", line.trim_end())
        };
        let expected = bucket("0.0025", "items")
            + &with(bucket("0.005", "items"), "0.003")
            + &bucket("0.005", "rest")
            + &with(bucket("+Inf", "items"), "31")
            + "# EOF\n";
        assert_eq!(add(&metrics, &exemplars), expected);
    }
}
