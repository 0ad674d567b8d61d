//! The formats of `GET /metrics`: `OpenMetrics` 1.0, and Prometheus' text format 0.0.4 for clients
//! that do not accept it.

use std::fmt::Write;

use axum::http::{HeaderMap, header};

/// A format of `GET /metrics`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Exposition {
    OpenMetrics,
    Text,
}

impl Exposition {
    /// The format for the request's `Accept`: `OpenMetrics` only if it is named and no other is
    /// preferred to it. Otherwise the text format, which Prometheus' own tools read.
    pub(super) fn negotiate(headers: &HeaderMap) -> Self {
        let values = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
        let ranges: Vec<MediaRange<'_>> =
            values.flat_map(|value| value.split(',')).map(MediaRange::parse).collect();
        let quality = |media: &[&str], version: &str| {
            media.iter().find_map(|media| {
                let named = ranges.iter().filter(|range| range.accepts(media, version));
                named.map(|range| range.quality).max()
            })
        };
        let open_metrics = quality(&["application/openmetrics-text"], "1.0.0").unwrap_or(0);
        let text = quality(&["text/plain", "text/*", "*/*"], "0.0.4").unwrap_or(0);
        if open_metrics > 0 && open_metrics >= text { Self::OpenMetrics } else { Self::Text }
    }

    /// The value of `Content-Type`.
    pub(super) fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
        }
    }

    /// Converts `metrics` from `OpenMetrics` format to this one.
    pub(super) fn write(self, metrics: String) -> String {
        match self {
            Self::OpenMetrics => metrics,
            Self::Text => text_format(&metrics),
        }
    }
}

/// One element of `Accept`.
struct MediaRange<'a> {
    media: &'a str,
    version: Option<&'a str>,
    /// In thousandths.
    quality: u32,
}

impl<'a> MediaRange<'a> {
    fn parse(text: &'a str) -> Self {
        let mut parts = text.split(';').map(str::trim);
        let mut range =
            Self { media: parts.next().unwrap_or_default(), version: None, quality: 1_000 };
        for (name, value) in parts.filter_map(|part| part.split_once('=')) {
            let value = value.trim().trim_matches('"');
            if name.trim().eq_ignore_ascii_case("version") {
                range.version = Some(value);
            } else if name.trim().eq_ignore_ascii_case("q") {
                let quality = value.parse::<f32>().unwrap_or(0.0).clamp(0.0, 1.0);
                range.quality = (quality * 1_000.0) as u32;
            }
        }
        range
    }

    fn accepts(&self, media: &str, version: &str) -> bool {
        self.media.eq_ignore_ascii_case(media) && self.version.is_none_or(|own| own == version)
    }
}

/// Converts `OpenMetrics` to text format 0.0.4: a counter's family gets the name of its series, and
/// units, exemplars and the end mark are left out.
fn text_format(metrics: &str) -> String {
    let mut text = String::with_capacity(metrics.len() + metrics.len() / 16);
    // A family's `HELP` precedes its `TYPE`, and only `TYPE` identifies counters.
    let mut help: Option<(&str, &str)> = None;
    for line in metrics.lines() {
        let Some(comment) = line.strip_prefix("# ") else {
            text.push_str(without_exemplar(line));
            text.push('\n');
            continue;
        };
        let mut words = comment.splitn(3, ' ');
        match (words.next(), words.next(), words.next()) {
            (Some("HELP"), Some(name), Some(described)) => help = Some((name, described)),
            (Some("TYPE"), Some(name), Some(kind)) => {
                let suffix = if kind == "counter" { "_total" } else { "" };
                let kind = if kind == "unknown" { "untyped" } else { kind };
                let described = help.take().filter(|(of, _)| *of == name);
                if let Some((_, described)) = described {
                    let _ = writeln!(text, "# HELP {name}{suffix} {described}");
                }
                let _ = writeln!(text, "# TYPE {name}{suffix} {kind}");
            }
            _ => {}
        }
    }
    text
}

/// A sample without the exemplar after its value.
fn without_exemplar(sample: &str) -> &str {
    let mut is_quoted = false;
    let mut is_escaped = false;
    for (at, byte) in sample.bytes().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_quoted => is_escaped = true,
            b'"' => is_quoted = !is_quoted,
            b'#' if !is_quoted => return sample[..at].trim_end(),
            _ => {}
        }
    }
    sample
}

#[cfg(test)]
mod tests {
    use super::*;

    fn negotiated(accept: &[&str]) -> Exposition {
        let mut headers = HeaderMap::new();
        for value in accept {
            headers.append(header::ACCEPT, value.parse().unwrap());
        }
        Exposition::negotiate(&headers)
    }

    #[test]
    fn accept_chooses_the_format() {
        // What Prometheus 2.42 and Prometheus 3 send.
        let prometheus_2 = "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;\
             q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        let prometheus_3 = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,\
             text/plain;version=1.0.0;escaping=allow-utf-8;q=0.5,text/plain;version=0.0.4;q=0.2,*/*;q=0.1";
        for accept in [
            prometheus_2,
            prometheus_3,
            "application/openmetrics-text",
            "Application/OpenMetrics-Text; Version=\"1.0.0\"; Q=0.5",
            "text/plain, application/openmetrics-text",
        ] {
            assert_eq!(negotiated(&[accept]), Exposition::OpenMetrics, "{accept}");
        }
        for accept in [
            "",
            "*/*",
            "text/plain",
            "application/json",
            "application/openmetrics-text;q=0",
            "application/openmetrics-text;q=x",
            "application/openmetrics-text;version=0.0.1",
            "application/openmetrics-text;q=0.5,text/plain",
            "application/openmetrics-text;q=0.5,*/*",
        ] {
            assert_eq!(negotiated(&[accept]), Exposition::Text, "{accept}");
        }
        assert_eq!(negotiated(&[]), Exposition::Text);
        let two = ["text/plain;q=0.5", "application/openmetrics-text"];
        assert_eq!(negotiated(&two), Exposition::OpenMetrics);
    }

    #[test]
    fn text_format_names_counters_by_their_series_and_has_no_exemplars() {
        let metrics = "# HELP a_b Help with # and words\n# TYPE a_b counter\na_b_total{c=\"d # {e\\\"\"} 1 # {id=\"f\"} 1 2\n\
             # HELP g_seconds Seconds\n# TYPE g_seconds gauge\n# UNIT g_seconds seconds\ng_seconds 5.5\n\
             # HELP h Unknown\n# TYPE h unknown\nh 1\n# EOF\n";
        let text = "# HELP a_b_total Help with # and words\n# TYPE a_b_total counter\na_b_total{c=\"d # {e\\\"\"} 1\n\
             # HELP g_seconds Seconds\n# TYPE g_seconds gauge\ng_seconds 5.5\n\
             # HELP h Unknown\n# TYPE h untyped\nh 1\n";
        assert_eq!(text_format(metrics), text);
        assert_eq!(Exposition::OpenMetrics.write(metrics.to_owned()), metrics);
    }
}
