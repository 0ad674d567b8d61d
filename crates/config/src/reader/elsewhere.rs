//! Where a key that a section does not have is at home.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use super::schema::ValueSchema;

/// A key with more places than this is too common to tell which one is meant.
const MAX_PLACES: usize = 2;
/// Maximum depth of sections.
const MAX_DEPTH: usize = 10;

/// Keys of other gateways, which have several meanings here, and their places.
const FOREIGN: [(&str, &[&str]); 8] = [
    (
        "timeout",
        &[
            "routes[].request_timeout",
            "upstreams.NAME.response_timeout",
            "upstreams.NAME.connect_timeout",
        ],
    ),
    (
        "timeouts",
        &[
            "routes[].request_timeout",
            "upstreams.NAME.response_timeout",
            "upstreams.NAME.connect_timeout",
        ],
    ),
    ("rate_limit", &["limits.NAME"]),
    ("rate_limits", &["limits.NAME"]),
    ("client_max_body_size", &["routes[].max_body"]),
    ("proxy_read_timeout", &["upstreams.NAME.response_timeout"]),
    ("proxy_connect_timeout", &["upstreams.NAME.connect_timeout"]),
    ("health_check", &["upstreams.NAME.health"]),
];

/// All keys of sections, with their paths. `[]` stands for an item of a list, `NAME` for a name.
static PLACES: LazyLock<BTreeMap<&str, Vec<String>>> = LazyLock::new(|| {
    let mut places = BTreeMap::new();
    add(&mut places, ValueSchema::root(), "", 0);
    places
});

fn add(
    places: &mut BTreeMap<&'static str, Vec<String>>,
    schema: ValueSchema,
    path: &str,
    depth: usize,
) {
    if depth > MAX_DEPTH {
        return;
    }
    for key in schema.keys() {
        let path = if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
        places.entry(key).or_default().push(path.clone());
        add(places, schema.property(key), &path, depth + 1);
    }
    if let Some(items) = schema.list_items() {
        add(places, items, &format!("{path}[]"), depth + 1);
    }
    if let Some(values) = schema.named_values() {
        add(places, values, &format!("{path}.NAME"), depth + 1);
    }
}

/// The places of a key that a section does not have, as a fault names them; `None` if no section
/// has it.
pub(super) fn places_of(key: &str) -> Option<String> {
    let foreign = FOREIGN.iter().find(|(name, _)| *name == key);
    let known = PLACES.get(key).filter(|places| places.len() <= MAX_PLACES);
    let all: Vec<&str> = match foreign {
        Some((_, places)) => places.to_vec(),
        None => known.into_iter().flatten().map(String::as_str).collect(),
    };
    let quoted: Vec<String> = all.iter().map(|place| format!("`{place}`")).collect();
    let (last, others) = quoted.split_last()?;
    Some(if others.is_empty() { last.clone() } else { format!("{} or {last}", others.join(", ")) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_found_in_every_section() {
        for (key, expected) in [
            ("cors", "`routes[].cors`"),
            ("redis", "`store.redis`, `consumers.redis`"),
            ("health", "`upstreams.NAME.health`"),
            ("max_failures", "`auth.NAME.max_failures`"),
            ("waiting_room", "`throttle.waiting_room`"),
            ("timeout", "`routes[].request_timeout`, `upstreams.NAME.response_timeout` or"),
        ] {
            let found = places_of(key).unwrap_or_default();
            let mut words = expected.split(", ").chain([""]);
            assert!(words.all(|word| found.contains(word)), "{key}: {found}");
        }
        assert_eq!(["no_such_key", "file", "name"].map(places_of), [None, None, None]);
        for (key, places) in FOREIGN {
            for place in places {
                let name = place.rsplit('.').next().unwrap_or_default();
                let known =
                    PLACES.get(name).is_some_and(|known| known.iter().any(|own| own == place));
                assert!(known || name == "NAME", "{key}: {place}");
            }
        }
    }
}
