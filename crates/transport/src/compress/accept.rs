//! The negotiation of a content coding by `Accept-Encoding` (RFC 9110, 12.5.3).

use super::Encoding;

/// A quality value in thousandths: 0 to 1000.
type CodingQuality = u16;

/// The encoding that the client prefers among `offered`, which begins with the gateway's
/// preference. `values` are the request's `Accept-Encoding` values. `None` if there are none, no
/// encoding is acceptable, or the client prefers an uncompressed body. A malformed member is
/// ignored.
pub fn negotiate<'a>(
    values: impl Iterator<Item = &'a [u8]>,
    offered: &[Encoding],
) -> Option<Encoding> {
    let (mut gzip, mut zstd, mut identity, mut any) = (None, None, None, None);
    for member in values.flat_map(|value| value.split(|byte| *byte == b',')) {
        let Some((name, quality)) = parse_member(member) else { continue };
        let named = |expected: &str| name.eq_ignore_ascii_case(expected.as_bytes());
        let place = match () {
            () if named("gzip") || named("x-gzip") => &mut gzip,
            () if named("zstd") => &mut zstd,
            () if named("identity") => &mut identity,
            () if name == b"*" => &mut any,
            () => continue,
        };
        // Repeated: the first counts.
        place.get_or_insert(quality);
    }
    let mut best: Option<(Encoding, CodingQuality)> = None;
    for encoding in offered {
        let named = match encoding {
            Encoding::Gzip => gzip,
            Encoding::Zstd => zstd,
        };
        let quality = named.or(any).unwrap_or(0);
        if quality > best.map_or(0, |(_, quality)| quality) {
            best = Some((*encoding, quality));
        }
    }
    best.filter(|(_, quality)| identity.is_none_or(|identity| *quality >= identity))
        .map(|(encoding, _)| encoding)
}

/// A member's coding and quality; `None` if the member is malformed.
fn parse_member(member: &[u8]) -> Option<(&[u8], CodingQuality)> {
    let mut parts = member.split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
    let name = parts.next().filter(|name| !name.is_empty())?;
    let quality = match parts.next() {
        None => 1000,
        Some(weight) => parse_quality(weight)?,
    };
    parts.next().is_none().then_some((name, quality))
}

/// A weight such as `q=0.5`: at most three decimals, and not above 1.
fn parse_quality(weight: &[u8]) -> Option<CodingQuality> {
    let number = weight.strip_prefix(b"q=").or_else(|| weight.strip_prefix(b"Q="))?;
    let (first, decimals) = match number {
        [first] => (first, &[][..]),
        [first, b'.', decimals @ ..] => (first, decimals),
        _ => return None,
    };
    if decimals.len() > 3 || !decimals.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let thousandths = [100, 10, 1].iter().zip(decimals);
    let fraction: CodingQuality =
        thousandths.map(|(unit, digit)| unit * CodingQuality::from(digit - b'0')).sum();
    match first {
        b'0' => Some(fraction),
        b'1' if fraction == 0 => Some(1000),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BOTH: [Encoding; 2] = [Encoding::Zstd, Encoding::Gzip];

    fn accepted(value: &str) -> Option<Encoding> {
        negotiate([value.as_bytes()].into_iter(), &BOTH)
    }

    #[test]
    fn the_client_decides_by_quality_and_the_route_between_equals() {
        use Encoding::{Gzip, Zstd};
        for (value, expected) in [
            ("gzip", Some(Gzip)),
            ("GZip", Some(Gzip)),
            ("x-gzip", Some(Gzip)),
            ("gzip, deflate, br, zstd", Some(Zstd)),
            ("gzip;q=1.0, zstd;q=0.999", Some(Gzip)),
            ("gzip ; q=0.5 , zstd ; Q=0.5", Some(Zstd)),
            ("*", Some(Zstd)),
            ("zstd;q=0, *", Some(Gzip)),
            ("zstd, *;q=0", Some(Zstd)),
            ("gzip;q=0.5, identity", None),
            ("gzip;q=0.5, identity;q=0.5", Some(Gzip)),
            ("gzip;q=0.001, identity;q=0", Some(Gzip)),
            ("gzip;q=0, gzip", None),
            ("identity", None),
            ("br", None),
            ("", None),
            ("gzip;q=0", None),
            ("gzip;q=0.000", None),
            ("gzip;q=1.001", None),
            ("gzip;q=0.0001", None),
            ("gzip;q=", None),
            ("gzip;q=-1", None),
            ("gzip;level=5", None),
            ("gzip;q=1;x", None),
            ("gzipped", None),
        ] {
            assert_eq!(accepted(value), expected, "{value}");
        }
        assert_eq!(negotiate(std::iter::empty(), &BOTH), None);
        let lines = [&b"br"[..], b"gzip"];
        assert_eq!(negotiate(lines.into_iter(), &BOTH), Some(Gzip));
        assert_eq!(negotiate([&b"zstd, gzip;q=0.1"[..]].into_iter(), &[Gzip]), Some(Gzip));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(value in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = negotiate([&value[..]].into_iter(), &BOTH);
        }

        #[test]
        fn the_highest_quality_wins(gzip in 0u16..=1000, zstd in 0u16..=1000, swap: bool) {
            let quality = |q: u16| format!("{}.{:03}", q / 1000, q % 1000);
            let mut members = [format!("gzip;q={}", quality(gzip)), format!("zstd;q={}", quality(zstd))];
            if swap {
                members.swap(0, 1);
            }
            let expected = match (gzip, zstd) {
                (0, 0) => None,
                _ if gzip > zstd => Some(Encoding::Gzip),
                _ => Some(Encoding::Zstd),
            };
            prop_assert_eq!(accepted(&members.join(",")), expected);
        }
    }
}
