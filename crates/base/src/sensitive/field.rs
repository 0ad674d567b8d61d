//! Header fields that the configuration writes: which of their values may be shown.

use super::{is_sensitive_name, is_sensitive_value};

/// Fields whose values are no secrets: browsers, caches and clients read them.
const HARMLESS: [&str; 19] = [
    "accept",
    "age",
    "allow",
    "alt-svc",
    "cache-control",
    "date",
    "expires",
    "last-modified",
    "permissions-policy",
    "pragma",
    "referrer-policy",
    "retry-after",
    "server",
    "strict-transport-security",
    "vary",
    "x-content-type-options",
    "x-frame-options",
    "x-robots-tag",
    "x-xss-protection",
];
/// How the names of further ones begin.
const HARMLESS_STARTS: [&str; 5] =
    ["accept-", "access-control-", "content-", "cross-origin-", "x-forwarded-"];

/// True if the value that the configuration writes to the field `name` may be shown. `value` is the
/// template.
///
/// Any other value may be a credential for an upstream, whatever its field is called, unless it
/// consists of variables.
pub fn shows_field(name: &str, value: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let is_harmless =
        HARMLESS.contains(&&*name) || HARMLESS_STARTS.iter().any(|start| name.starts_with(start));
    if is_harmless {
        return !is_sensitive_value(value);
    }
    !is_sensitive_name(&name) && is_variables(value)
}

/// True if the `pattern` whose matches in the field `name` are replaced may be shown.
pub fn shows_pattern(name: &str, pattern: &str) -> bool {
    let text = pattern.trim_start_matches(|c: char| !c.is_alphanumeric());
    !is_sensitive_name(name) && !is_sensitive_value(text)
}

/// True if nothing but variables and punctuation is in the template, and none of them is a possible
/// credential.
pub(super) fn is_variables(template: &str) -> bool {
    let mut rest = template;
    loop {
        let (before, from) = rest.split_at(rest.find('{').unwrap_or(rest.len()));
        if before.contains(|c: char| c.is_alphanumeric()) {
            return false;
        }
        let Some((name, after)) = from.strip_prefix('{').and_then(|from| from.split_once('}'))
        else {
            return from.is_empty();
        };
        // A variable of the environment, whose default is left out already.
        let name = name.strip_suffix(":-...").unwrap_or(name);
        let is_inner = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
        let is_name =
            name.starts_with(|c: char| c.is_ascii_alphabetic()) && name.chars().all(is_inner);
        if !is_name || name.strip_prefix("header.").is_some_and(is_sensitive_name) {
            return false;
        }
        rest = after;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_harmless_fields_and_variables_are_shown() {
        for (name, value) in [
            ("Content-Type", "text/plain"),
            ("cache-control", "max-age=60"),
            ("Access-Control-Allow-Credentials", "true"),
            ("x-client", "{client_ip}, {path.id}"),
            ("x-plan", "{header.x-plan}"),
            ("x-empty", ""),
            ("x-env", "${TIER}"),
            ("x-env", "${TIER:-...}"),
        ] {
            assert!(shows_field(name, value), "{name}: {value}");
        }
        for (name, value) in [
            ("Authorization", "{header.x-a}"),
            ("x-upstream", "hush"),
            ("x-upstream", "{plan}hush"),
            ("x-env", "${TIER:-hush hush}"),
            ("x-copy", "{header.authorization}"),
            ("content-type", "Bearer hush"),
            ("x-open", "{hush hush"),
            ("x-literal", "{{hush}}"),
        ] {
            assert!(!shows_field(name, value), "{name}: {value}");
        }
    }
}
