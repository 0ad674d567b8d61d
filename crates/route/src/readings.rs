//! The ways in which servers read a path that is forwarded as it was sent.
//!
//! Servers differ in whether they merge slashes, resolve `.` and `..`, and decode `%2F`. A route
//! may forward a path that is not in normal form only if no server finds another route's path in
//! it: [`readings`] lists what they find.

use super::normalize::{
    DotSegments, PathError, PathReading, Slashes, decode_unreserved, normalize, routed_form,
};

/// The paths, in the form of routes, that servers may read in `sent`, a path whose normal form is
/// known to exist. Without duplicates. `slashes` is the caller's own reading: with
/// [`Slashes::Keep`], the servers are known to keep them.
///
/// # Errors
/// A `.` or `..` segment is percent-encoded, so that some servers see it only after they have
/// resolved the others; or a reading leads above the root.
///
/// ```
/// use tidegate_route::{normalize::Slashes, readings::readings};
///
/// let found = readings("/a//../b", Slashes::Merge).unwrap();
/// assert_eq!(found, ["/b", "/a/../b", "/a/b", "/a//../b"]);
/// ```
pub fn readings(sent: &str, slashes: Slashes) -> Result<Vec<String>, PathError> {
    let decoded = decode_unreserved(sent)?;
    check_dots(sent, &decoded)?;
    let as_slashes = decoded.replace("%2F", "/").replace("%5C", "/");
    let mut found: Vec<String> = Vec::new();
    for text in [&decoded, &as_slashes] {
        for reading in all_readings(slashes) {
            let path = reading.apply(text)?;
            let path = routed_form(&path, reading.slashes).into_owned();
            if !found.contains(&path) {
                found.push(path);
            }
        }
    }
    Ok(found)
}

/// True if servers agree on `sent`: it is in normal form, also if slashes are merged, and has
/// neither an encoded slash nor a parameter, without which a segment may be empty.
pub fn is_unambiguous(sent: &str) -> bool {
    let is_normal = normalize(sent, Slashes::Merge).is_ok_and(|normal| *normal == *sent);
    is_normal && !["%2F", "%5C", ";"].iter().any(|text| sent.contains(text))
}

const DOTS: [DotSegments; 2] = [DotSegments::Resolved, DotSegments::Kept];

fn all_readings(slashes: Slashes) -> impl Iterator<Item = PathReading> {
    let slashes: &[Slashes] = match slashes {
        Slashes::Merge => &[Slashes::Merge, Slashes::Keep],
        Slashes::Keep => &[Slashes::Keep],
    };
    slashes.iter().flat_map(|slashes| {
        DOTS.into_iter().flat_map(move |dot| {
            DOTS.into_iter().map(move |dot_dot| PathReading { slashes: *slashes, dot, dot_dot })
        })
    })
}

/// Checks that no `.` and `..` segment is percent-encoded.
fn check_dots(sent: &str, decoded: &str) -> Result<(), PathError> {
    let mut pairs = sent.split('/').zip(decoded.split('/'));
    let is_encoded = pairs.any(|(sent, decoded)| matches!(decoded, "." | "..") && sent != decoded);
    if is_encoded { Err(PathError::EncodedDot) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_reading_of_a_path_is_listed() {
        for (sent, slashes, wanted) in [
            ("/a/b", Slashes::Merge, &["/a/b"][..]),
            ("/a//b", Slashes::Merge, &["/a/b", "/a//b"]),
            ("/a//b", Slashes::Keep, &["/a//b"]),
            ("/a/./b", Slashes::Merge, &["/a/b", "/a/./b"]),
            ("/a/./../b", Slashes::Merge, &["/b", "/a/../b", "/a/b", "/a/./../b"]),
            ("/a%2fb%5C%7Ec", Slashes::Merge, &["/a%2Fb%5C~c", "/a/b/~c"]),
            ("/a;v=1//b", Slashes::Merge, &["/a/b", "/a//b"]),
        ] {
            assert_eq!(readings(sent, slashes).unwrap(), wanted, "{sent}");
        }
    }

    #[test]
    fn paths_that_no_two_servers_agree_on_are_errors() {
        for (sent, error) in [
            ("/a/%2e/b", PathError::EncodedDot),
            ("/a/.%2E/b", PathError::EncodedDot),
            // Above the root if slashes are merged, or if only `..` is resolved.
            ("//../a", PathError::AboveRoot),
            ("/./../../a", PathError::AboveRoot),
        ] {
            assert_eq!(readings(sent, Slashes::Merge), Err(error), "{sent}");
        }
    }

    proptest! {
        #[test]
        fn the_normal_form_is_the_first_reading(
            sent in "/([a-c]|/|\\.|%2F|%61|;){0,16}",
            merges in any::<bool>(),
        ) {
            let slashes = if merges { Slashes::Merge } else { Slashes::Keep };
            let Ok(normal) = normalize(&sent, slashes) else { return Ok(()) };
            let Ok(found) = readings(&sent, slashes) else { return Ok(()) };
            prop_assert_eq!(&*found[0], &*routed_form(&normal, slashes));
            if is_unambiguous(&sent) {
                prop_assert_eq!(found.len(), 1);
            }
        }
    }
}
