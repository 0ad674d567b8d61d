//! Places of scalars in a file: [`shows_scalar`] decides whether a scalar may be quoted.

use super::member::{is_joined_secret, is_reference};
use super::{
    hides_member, is_secret_member, is_sensitive_name, is_sensitive_value, shows_field,
    shows_pattern,
};

/// A step from the root of a file towards a scalar.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Step<'t> {
    /// Into the member of a mapping with this key.
    Member(&'t str),
    /// Into an item of a list.
    Item,
}

/// What a scalar is in the collection around it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Role {
    /// The key of a member. Its path leads to the mapping.
    Key,
    /// A value. The last step of its path is its own.
    Value,
}

/// Mappings at the root of a configuration whose members have names that the operator chose.
const NAMED: [&str; 5] = ["auth", "limits", "plans", "upstreams", "domains"];
/// Members of records of keys whose values are no secrets.
const KEY_MEMBERS: [&str; 2] = ["expires", "id"];
/// Names that operators write in records of keys. Any other name there may be a key itself.
const KEY_NAMES: [&str; 14] = [
    "comment", "created", "expire", "expires", "expiry", "hash", "id", "key", "label", "name",
    "plan", "sha", "sha256", "value",
];
/// Members that are secrets besides those of [`is_secret_member`], also if they are written as
/// mappings.
const SECRET_KEYS: [&str; 2] = ["hmac_key", "storage_key"];
/// Sections of a method or of a certificate's order: a scalar in the place of one may be its secret.
const SECRET_SECTIONS: [&str; 7] =
    ["api_key", "basic", "certificate", "eab", "external_account", "forward", "jwt"];
/// Members of records of consumers and overrides whose values may be a caller's key.
const RECORD_KEYS: [&str; 4] = ["hash", "key", "value", "values"];

/// Parts of keys whose values are no secrets: tiers name them in their `match.values`.
const SHOWN_PARTS: [&str; 6] = ["client_ip", "host", "method", "path", "plan", "route"];

/// The step to a member named `name`, beside a member that says `named`: a `value` belongs to the
/// name beside it, and the `values` of a tier to their part.
pub fn step_to<'t>(name: &'t str, named: Option<&'t str>) -> Step<'t> {
    let step = match (name, named) {
        ("value", Some(named)) => named,
        ("values", Some(named)) if SHOWN_PARTS.contains(&named) => named,
        _ => name,
    };
    Step::Member(step)
}

/// True if the scalar `text` at this place may be quoted. What its form betrays is masked besides,
/// by [`mask_forms`](super::mask_forms).
pub fn shows_scalar(path: &[Step<'_>], role: Role, text: &str) -> bool {
    let hides = |index: usize| {
        let Step::Member(name) = path[index] else { return false };
        let place = MemberPlace { name, before: &path[..index], after: &path[index + 1..] };
        place.hides(role, text)
    };
    !is_joined_secret(text) && !(0..path.len()).any(hides)
}

/// A member on the path of a scalar.
struct MemberPlace<'p, 't> {
    name: &'t str,
    before: &'p [Step<'t>],
    after: &'p [Step<'t>],
}

impl MemberPlace<'_, '_> {
    fn hides(&self, role: Role, text: &str) -> bool {
        let is_outer_value = role == Role::Value && !self.has_members();
        if is_outer_value && self.hides_own(text) {
            return true;
        }
        if self.is_chosen_name() && (self.has_members() || role == Role::Key) {
            return false;
        }
        match self.name {
            "set" | "add" => self.hides_written(role, text),
            "replace" => self.hides_replaced(role, text),
            "headers" | "query" | "cookies" if self.is_below("match") => {
                self.hides_matched(role, text)
            }
            name if self.is_misspelt_edit(name) => self.hides_written(role, text),
            name if SECRET_SECTIONS.contains(&name) && self.is_below_owner() => {
                self.hides_section(role, text)
            }
            "headers" if self.is_below("traces") => role == Role::Value && !is_reference(text),
            // Passwords by name, in the shape of other gateways.
            "users" if self.is_below("auth") => role == Role::Value && !is_reference(text),
            "tiers" => self.hides_tier(role, text),
            "keys" => self.hides_key_record(role, text),
            "token" if self.names_part(role, text) => false,
            name if self.is_in_record() && RECORD_KEYS.contains(&name) => {
                role == Role::Key || self.has_members() && !is_reference(text)
            }
            name if is_secret_member(name) || SECRET_KEYS.contains(&name) => {
                role == Role::Key || self.has_members() && !is_reference(text)
            }
            _ => false,
        }
    }

    /// True if the member's own scalar, or an item of its list, is hidden by the member's name.
    fn hides_own(&self, text: &str) -> bool {
        // A part of a key in two words, such as `token: [cookie: session]`.
        if self.name == "cookie" && self.is_in_parts() {
            return false;
        }
        let is_list = !self.after.is_empty();
        if self.is_in_record() && RECORD_KEYS.contains(&self.name) {
            return !is_reference(text);
        }
        let is_secret = is_secret_member(self.name);
        let is_switch = !is_secret && matches!(text, "true" | "false");
        (!is_list || is_secret || self.name.ends_with("_key"))
            && !is_switch
            && hides_member(self.name, text)
    }

    /// A value that a rule writes to a header field. The first member below is the field.
    fn hides_written(&self, role: Role, text: &str) -> bool {
        match (self.first_member(), role) {
            (None, Role::Key) => false,
            // Overrides have a time with this name.
            (None, Role::Value) => !self.is_in_record() && !is_ordinary(text),
            (Some(_), Role::Key) => true,
            (Some(field), Role::Value) => !shows_field(field, text),
        }
    }

    /// True for an unknown member beside `set` and `add`, which may be one of them.
    fn is_misspelt_edit(&self, name: &str) -> bool {
        let is_rules = matches!(
            self.before,
            [.., Step::Member("headers"), Step::Member("request" | "response")]
        );
        is_rules && !matches!(name, "remove" | "replace")
    }

    /// True for a section of a method in `auth` or of `acme`.
    fn is_below_owner(&self) -> bool {
        matches!(self.before, [Step::Member("auth"), Step::Member(_)])
            || matches!(self.before, [.., Step::Member("acme")])
    }

    /// A scalar in the place of a section, or a key of its own that the section does not have.
    fn hides_section(&self, role: Role, text: &str) -> bool {
        role == Role::Value
            && match self.first_member() {
                None => !is_ordinary(text) && !is_reference(text),
                Some(name) => name == "key" && !is_reference(text),
            }
    }

    /// What a rule replaces in a header field, and the text for it. The first member below is the
    /// field.
    fn hides_replaced(&self, role: Role, text: &str) -> bool {
        let is_part = |step: &Step<'_>| *step == Step::Member("pattern");
        match (self.first_member(), role) {
            (None, Role::Key) => false,
            (None, Role::Value) => !is_ordinary(text),
            (Some(_), Role::Key) => !matches!(text, "pattern" | "with"),
            (Some(field), Role::Value) if self.after.iter().any(is_part) => {
                !shows_pattern(field, text)
            }
            (Some(field), Role::Value) => !shows_field(field, text),
        }
    }

    /// The value of a field, a parameter or a cookie that a route is matched by.
    fn hides_matched(&self, role: Role, text: &str) -> bool {
        let is_list = self.after.contains(&Step::Item);
        match (self.first_member(), role) {
            (None, Role::Key) => false,
            (None, Role::Value) => true,
            (Some(name), Role::Key) => is_list || is_sensitive_name(name),
            (Some(name), Role::Value) => {
                let is_switch = matches!(text, "true" | "false");
                // An item names its field with a member of its own, such as `name`.
                let is_hidden = is_sensitive_name(name) || is_sensitive_value(text);
                !is_switch && (is_hidden || is_list && !matches!(name, "name" | "header"))
            }
        }
    }

    /// The values by which a tier matches: they may be tokens.
    fn hides_tier(&self, role: Role, text: &str) -> bool {
        let is_match = |step: &Step<'_>| *step == Step::Member("match");
        let Some(at) = self.after.iter().position(is_match) else {
            let is_values =
                self.first_member().is_none_or(|name| name.starts_with("val") || name == "part");
            return role == Role::Value && is_values && !is_ordinary(text) && !is_reference(text);
        };
        match self.after[at + 1..].iter().find(|step| **step != Step::Item) {
            Some(Step::Member("part")) => role == Role::Key,
            // `values` is called as their part is.
            Some(Step::Member(part)) if SHOWN_PARTS.contains(part) => role == Role::Key,
            None => role == Role::Value,
            _ => true,
        }
    }

    /// A record of a key: only its name and its expiry are no secrets.
    fn hides_key_record(&self, role: Role, text: &str) -> bool {
        match (self.first_member(), role) {
            (None, Role::Key) => !KEY_NAMES.contains(&text),
            (None, Role::Value) => false,
            (Some(name), Role::Value) if KEY_MEMBERS.contains(&name) => false,
            (Some(_), Role::Value) => !is_reference(text),
            (Some(_), Role::Key) => true,
        }
    }

    /// True for a member of an item of a list of parts of a key.
    fn is_in_parts(&self) -> bool {
        match self.before {
            [before @ .., Step::Member("token"), Step::Item] => *before == [Step::Member("client")],
            [.., Step::Member("from" | "hash_key" | "key"), Step::Item] => {
                !self.is_below("entries")
            }
            _ => false,
        }
    }

    fn names_part(&self, role: Role, text: &str) -> bool {
        if *self.before != [Step::Member("client")] {
            return false;
        }
        let is_part = |name: &str| matches!(name, "header" | "cookie" | "query");
        match (self.first_member(), role) {
            (None, Role::Key) => is_part(text),
            (Some(name), Role::Value) => is_part(name),
            _ => false,
        }
    }

    fn has_members(&self) -> bool {
        self.first_member().is_some()
    }

    fn first_member(&self) -> Option<&str> {
        self.after.iter().find_map(|step| match step {
            Step::Member(name) => Some(*name),
            Step::Item => None,
        })
    }

    fn is_below(&self, name: &str) -> bool {
        self.before.contains(&Step::Member(name))
    }

    /// True if the operator chose the name, such as the name of a limit.
    fn is_chosen_name(&self) -> bool {
        matches!(self.before, [.., Step::Member("domains")])
            || matches!(self.before, [Step::Member(section)] if NAMED.contains(section))
    }

    /// True for a member of an item of the file's list, as in files of consumers and of overrides.
    fn is_in_record(&self) -> bool {
        matches!(
            self.before,
            [Step::Item] | [.., Step::Member("entries" | "overrides" | "consumers"), Step::Item]
        )
    }
}

/// True for a number, a duration or a time.
fn is_ordinary(text: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_alphanumeric() || b"+-./: ".contains(&byte);
    text.is_empty()
        || text.len() <= 32
            && text.starts_with(|c: char| c.is_ascii_digit())
            && text.bytes().all(is_inner)
            && text.bytes().filter(u8::is_ascii_alphabetic).count() <= 2
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads a path such as `keys.-.id`. A path that ends with a dot is that of a key.
    fn shows(place: &str, text: &str) -> bool {
        let (path, role) = match place.strip_suffix('.') {
            Some(path) => (path, Role::Key),
            None => (place, Role::Value),
        };
        let step = |name| if name == "-" { Step::Item } else { Step::Member(name) };
        let path: Vec<Step<'_>> = path.split('.').map(step).collect();
        shows_scalar(&path, role, text)
    }

    #[test]
    fn a_place_decides_what_is_shown() {
        for place in [
            "headers.request.set.x-a",
            "headers.request.set",
            "headers.request.add.-.x-a",
            "headers.request.set.x-a.b",
            "headers.request.set.x-a.",
            "match.headers.-",
            "match.headers.-.value",
            "match.query.token",
            "match.cookies.session.",
            "limits.a.tiers.-.match.values.-",
            "limits.a.tiers.-.match.valus",
            "limits.a.tiers.-.values.-",
            "limits.a.tiers.-.match.values.-.",
            "-.keys.-",
            "-.keys.-.",
            "-.keys.-.other",
            "-.keys.-.id.",
            "-.key",
            "overrides.-.key.-",
            "overrides.-.hash",
            "overrides.-.key.x",
            "overrides.-.key.",
            "admin.token.-.cookie",
            "admin.token.",
            "store.redis.password.a",
            "store.redis.secret.",
            "limits.secret.key.secret.x",
            "traces.headers.x-team",
            "auth.b.basic.users.a",
            "admin.token.-.-",
            "a.passwd.-",
            "headers.request.sett.x-a",
            "auth.j.jwt",
            "auth.b.basic",
            "auth.k.api_key.key",
            "listen.-.tls.acme.eab",
        ] {
            assert!(!shows(place, "own-hush"), "{place}");
        }
        for (place, text) in [
            ("store.redis", "password:own-hush"),
            ("store.redis", "password=own-hush"),
            ("store.redis.password", "env:own-hush"),
            ("admin.token", "env: own"),
        ] {
            assert!(!shows(place, text), "{place}: {text}");
        }
        for (place, text) in [
            ("headers.request.set.", "x-a"),
            ("headers.request.set.x-a", "{client_ip}"),
            ("match.headers.x-plan", "gold"),
            ("match.headers.x-api-key", "true"),
            ("limits.a.tiers.-.match.part", "header:x"),
            ("limits.a.tiers.-.match.method.-", "get"),
            ("limits.a.tiers.-.quota", "5"),
            ("-.keys.-.id", "a"),
            ("-.keys.-.", "sha"),
            ("auth.keys.api_key.from.-", "header:x"),
            ("limits.token.quota", "many"),
            ("limits.a.key.-", "ip"),
            ("overrides.-.set", "2026-11-29T12:00:00Z"),
            ("overrides.-.quota", "lots"),
            ("routes.-.auth.-", "keys"),
            ("store.redis.password", "env:X"),
            ("client.token.-.cookie", "session"),
            ("auth.k.api_key.from.-", "query:key"),
            ("auth.j.jwt.issuer", "https://id.test"),
            ("headers.request.remove.-", "x-a"),
        ] {
            assert!(shows(place, text), "{place}: {text}");
        }
    }
}
