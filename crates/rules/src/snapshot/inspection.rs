//! [`Inspection`]: the members of a request's JSON body that a route reads before it charges
//! limits.

use std::sync::Arc;

use tidegate_config::{ErrorFormat, RouteConfig};
use tidegate_http1::Fields;
use tidegate_identity::{KeyPart, KeyPlan};
use tidegate_usage::{JsonPath, PathSet, RequestMembers, RequestScanner, UnreadableBody};

use super::policy::{Cost, LimitPolicy, TierMatch};
use super::section::Section;

/// Which members of a request's body a route reads.
#[derive(Debug)]
pub struct Inspection {
    /// Their paths.
    pub paths: Arc<PathSet>,
    /// The members, as bits of `paths`, by which requests are counted or sent to a target. A longer
    /// body than `max` must have them in its first bytes. The members of estimates are not among
    /// them: a limit knows what to charge without.
    pub required: u32,
    /// The members of estimates, as bits of `paths`.
    pub estimates: u32,
    /// The path of the `id` of a JSON-RPC call, for its refusal.
    pub call_id: Option<JsonPath>,
    /// Bytes that are read ahead.
    pub max: usize,
}

/// What a route reads of a request's body for.
pub(super) struct InspectionNeeds<'a> {
    /// The limits that it charges.
    pub(super) charged: &'a [Arc<LimitPolicy>],
    /// The limits that it reports without a charge.
    pub(super) reported: &'a [Arc<LimitPolicy>],
    /// The key of its target.
    pub(super) hash_key: Option<&'a KeyPlan>,
}

impl Inspection {
    /// The inspection that a route's limits, target and refusals need; `None` if it reads no body.
    /// Reports a fault if it reads too many members.
    pub(super) fn compile(
        section: &Section<'_>,
        needs: &InspectionNeeds<'_>,
        route: &RouteConfig,
    ) -> Option<Box<Self>> {
        let (mut required, mut optional) = (Vec::new(), Vec::new());
        for policy in needs.charged.iter().chain(needs.reported) {
            required.extend(policy.key.0.iter().filter_map(member));
            required.extend(policy.tiers.iter().filter_map(|tier| match &tier.matches {
                TierMatch::Part(part, _) => member(part),
                TierMatch::Networks(_) => None,
            }));
        }
        for policy in needs.charged {
            if let Cost::Settled(settled) = &policy.cost
                && let Some(members) = settled.estimated_members()
            {
                optional.extend_from_slice(&members.bounds);
                optional.extend_from_slice(&members.choices);
            }
        }
        required.extend(needs.hash_key.iter().flat_map(|key| &key.0).filter_map(member));
        let is_call = route.refuse_as == Some(ErrorFormat::JsonRpc);
        let call_id = if is_call { "id".parse::<JsonPath>().ok() } else { None };
        let mut paths = [required.as_slice(), &optional].concat();
        paths.extend(call_id.clone());
        if paths.is_empty() {
            return None;
        }
        paths.sort();
        paths.dedup();
        let bit =
            |path: &JsonPath| paths.binary_search(path).map_or(0, |index| 1u32 << index.min(31));
        let bits = |paths: &[JsonPath]| paths.iter().fold(0, |mask, path| mask | bit(path));
        let (required, estimates) = (bits(&required), bits(&optional));
        let count = paths.len();
        let Some(paths) = PathSet::new(paths) else {
            let what = format!("limits that read {count} members of a request's body");
            section.at("limits").fault(what, "at most 32 in a route");
            return None;
        };
        let max = usize::try_from(route.max_inspect.0).unwrap_or(usize::MAX);
        Some(Box::new(Self { paths: Arc::new(paths), required, estimates, call_id, max }))
    }
}

impl Inspection {
    /// Checks that a body with these `fields` is JSON by its type, and not compressed.
    ///
    /// # Errors
    /// It has another type or character set, or a coding.
    pub fn check_type(fields: &Fields) -> Result<(), UnreadableBody> {
        let is_coded = |value: &[u8]| !value.trim_ascii().eq_ignore_ascii_case(b"identity");
        if fields.get_all("content-encoding").any(is_coded) {
            return Err(UnreadableBody::Coded);
        }
        let mut types = fields.get_all("content-type");
        let Some(value) = types.next() else { return Ok(()) };
        let value = value.to_ascii_lowercase();
        let mut parts = value.split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
        let media_type = parts.next().unwrap_or_default();
        let is_json = media_type.ends_with(b"/json") || media_type.ends_with(b"+json");
        // In another character set, upstreams would read other members.
        let is_utf8 = |parameter: &[u8]| {
            memchr::memmem::find(parameter, b"charset").is_none()
                || matches!(parameter, b"charset=utf-8" | b"charset=\"utf-8\"")
        };
        let is_readable = is_json && parts.all(is_utf8) && types.next().is_none();
        if is_readable { Ok(()) } else { Err(UnreadableBody::MediaType) }
    }

    /// The members in the `first` bytes of a body, of which `scanner` has seen at most `max`;
    /// `is_complete` if the body has no others. An empty body has none.
    ///
    /// # Errors
    /// The body is not JSON, a member can be read in more than one way, or a member that a limit
    /// counts by is not within the first bytes.
    pub fn members(
        &self,
        scanner: &RequestScanner,
        first: &[u8],
        is_complete: bool,
    ) -> Result<RequestMembers, UnreadableBody> {
        if is_complete && first.is_empty() {
            return Ok(RequestMembers::default());
        }
        let members = RequestMembers::read(scanner, first, is_complete)?;
        let mut paths = self.paths.paths().iter().enumerate();
        let is_late = |(index, _): &(usize, &JsonPath)| {
            self.required & (1 << index) != 0 && scanner.member(*index).is_none()
        };
        match paths.find(is_late) {
            Some((_, path)) if !is_complete => {
                Err(UnreadableBody::TooLong { path: path.to_string(), max: self.max as u64 })
            }
            _ => Ok(members),
        }
    }

    /// Checks what has arrived after the members of the paths `decided`, as bits, were read;
    /// `estimates` are the paths of estimates.
    ///
    /// # Errors
    /// It is no JSON, has a member twice, or has an estimate.
    pub fn check_rest(
        scanner: &RequestScanner,
        decided: u32,
        estimates: u32,
    ) -> Result<(), UnreadableBody> {
        scanner.check()?;
        let late = scanner.found() & !decided & estimates;
        // A client could hide a larger number behind the bytes that are read ahead. Without a first
        // one, what is charged does not depend on it.
        if late != 0 && decided & estimates != 0 { Err(UnreadableBody::Rest) } else { Ok(()) }
    }

    /// Members of a body of which only estimates are read: none if nothing can be read of the body.
    ///
    /// # Errors
    /// `read` is an error, and the body is ambiguous or has a member by which requests are counted.
    pub fn or_none(
        &self,
        read: Result<RequestMembers, UnreadableBody>,
    ) -> Result<RequestMembers, UnreadableBody> {
        match read {
            Err(error) if self.required == 0 && !error.is_ambiguous() => {
                Ok(RequestMembers::default())
            }
            read => read,
        }
    }
}

fn member(part: &KeyPart) -> Option<JsonPath> {
    match part {
        KeyPart::Json(path) => Some(path.clone()),
        _ => None,
    }
}
