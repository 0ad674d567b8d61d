//! Suggestions for misspelt keys.

use tidegate_scalar::suggest;

/// Keys of other gateways and of earlier versions, each with the key of the same meaning.
const FOREIGN_KEYS: [(&str, &str); 16] = [
    ("rate", "quota"),
    ("limit", "quota"),
    ("requests", "quota"),
    ("average", "quota"),
    ("per", "window"),
    ("period", "window"),
    ("interval", "window"),
    ("proxy_pass", "upstream"),
    ("backend", "upstream"),
    ("service", "upstream"),
    ("servers", "targets"),
    ("server", "targets"),
    ("cert", "certificates"),
    ("ssl", "tls"),
    // Earlier versions.
    ("answer_timeout", "response_body_timeout"),
    ("answer_idle_timeout", "response_idle_timeout"),
];

/// The known key that `word` probably means: the key of the same meaning, or else the closest one.
pub(super) fn suggest_key(word: &str, known: &[&'static str]) -> Option<&'static str> {
    let same = FOREIGN_KEYS.iter().find(|(foreign, _)| *foreign == word);
    let same = same.and_then(|(_, key)| known.iter().copied().find(|known| known == key));
    same.or_else(|| suggest(word, known.iter().copied()))
}
