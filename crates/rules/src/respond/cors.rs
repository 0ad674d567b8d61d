//! The header fields of cross-origin resource sharing (Fetch standard, "CORS protocol").

use bytes::Bytes;
use http::StatusCode;
use tidegate_http1::Fields;

use super::LocalReply;
use crate::snapshot::CorsPolicy;

/// True if the gateway replaces a field of this name in an upstream's response. Ignores case.
pub(super) fn is_cors_field(name: &[u8]) -> bool {
    const PREFIX: &[u8] = b"access-control-";
    name.len() > PREFIX.len() && name[..PREFIX.len()].eq_ignore_ascii_case(PREFIX)
}

/// Writes the CORS fields of a response to `request`: the origin that may read it, and
/// `Vary: Origin`. Omits the `Vary` if every origin may read the response, or if `upstream` already
/// has it.
pub fn write_cors_fields(
    fields: &mut Fields,
    policy: &CorsPolicy,
    request: &Fields,
    upstream: Option<&Fields>,
) {
    let is_vary = |fields: &Fields| {
        let values = fields.get_all("vary").flat_map(|value| value.split(|byte| *byte == b','));
        let mut names = values.map(<[u8]>::trim_ascii);
        names.any(|name| name == b"*" || name.eq_ignore_ascii_case(b"origin"))
    };
    if !policy.origins.is_any() && !upstream.is_some_and(is_vary) {
        fields.push("vary", "Origin");
    }
    if write_allowed_origin(fields, policy, request) {
        fields.push("access-control-expose-headers", &*policy.expose);
    }
}

/// Writes the origin that may read the response. Returns true if it includes the origin of
/// `request`.
fn write_allowed_origin(fields: &mut Fields, policy: &CorsPolicy, request: &Fields) -> bool {
    if policy.origins.is_any() {
        // Written even without an `Origin`: a cache may give the response to a script.
        fields.push("access-control-allow-origin", "*");
        return true;
    }
    let mut origins = request.get_all("origin");
    let Some(origin) = origins.next().filter(|_| origins.next().is_none()) else { return false };
    if !policy.origins.contains(origin) {
        return false;
    }
    fields.push("access-control-allow-origin", origin);
    if policy.credentials {
        fields.push("access-control-allow-credentials", "true");
    }
    true
}

/// The response to a preflight, without the fields that [`write_cors_fields`] adds. It permits
/// nothing for an origin that may not use the route.
pub(super) fn preflight_reply(policy: &CorsPolicy, request: &Fields) -> LocalReply {
    let mut fields = Fields::new();
    let mut origins = request.get_all("origin");
    let origin = origins.next().filter(|_| origins.next().is_none());
    if origin.is_some_and(|origin| policy.origins.contains(origin)) {
        fields.push("access-control-allow-methods", &*policy.methods);
        if !policy.headers.is_empty() {
            fields.push("access-control-allow-headers", &*policy.headers);
        }
        fields.push_number("access-control-max-age", policy.max_age);
    }
    LocalReply { status: StatusCode::NO_CONTENT, fields, body: Bytes::new() }
}
