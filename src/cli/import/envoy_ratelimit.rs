//! Limits of a domain that decide as a file of envoyproxy/ratelimit does.
//!
//! The file is a tree in which an entry chooses at most one node of a level: that of its value,
//! else the first with the beginning of its value, else that of any value. A domain has a list of
//! items in which the first that fits decides. So nodes become items in the order in which the tree
//! would choose them. Where the tree has nothing below a chosen node, an unlimited item keeps the
//! items of nodes beside it from applying.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use ahash::RandomState;
use hashbrown::{HashMap, HashSet};

use crate::config::{DescriptorConfig, DescriptorRate, DescriptorsFile, Duration};
use crate::escape::{escape, is_unprintable};
use crate::sensitive::is_sensitive_name;

/// Maximum length of a limit's name, in bytes.
const MAX_NAME: usize = 64;
/// Maximum length of the number after a name, in bytes.
const MAX_NUMBER: usize = 8;
/// Matches every value.
const ANY: &str = "*";

/// A domain with its limits, printed as a configuration.
#[derive(Default)]
pub(super) struct NativeDomain {
    name: String,
    items: Vec<DomainItem>,
    /// What the items cover, by the names of their entries.
    covered: HashMap<Vec<String>, CoveredValues, RandomState>,
    limits: Vec<ImportedLimit>,
    /// The names of limits so far, each with the number of the next limit of that name.
    names: HashMap<String, u32, RandomState>,
    /// What the configuration does not express.
    pub(super) notes: Vec<String>,
}

/// The values that items of the same names have, in the order of the names.
#[derive(Default)]
struct CoveredValues {
    exact: HashSet<Vec<String>, RandomState>,
    /// The ones with a `*`.
    wide: Vec<Vec<String>>,
}

/// An item of the domain's list.
struct DomainItem {
    answer: ItemAnswer,
    /// The values of entries by their names: VALUE, `START*` or [`ANY`].
    values: BTreeMap<String, String>,
}

enum ItemAnswer {
    /// The limit with this index.
    Limit(usize),
    Unlimited,
    Blocked,
}

struct ImportedLimit {
    name: String,
    /// The names of entries.
    key: Vec<String>,
    quota: u32,
    window: Duration,
    enforce: bool,
}

/// A node after the nodes above it, from the first level on.
type NodePath<'f> = Vec<&'f DescriptorConfig>;

impl NativeDomain {
    /// The domain of a file.
    pub(super) fn of(file: &DescriptorsFile) -> Self {
        let mut domain = Self { name: file.domain.clone(), ..Self::default() };
        domain.add_level(&file.descriptors, &NodePath::new());
        domain
    }

    /// True if no limit applies to any descriptor.
    pub(super) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Adds the items of nodes that stand side by side below `above`.
    fn add_level<'f>(&mut self, descriptors: &'f [DescriptorConfig], above: &NodePath<'f>) {
        let mut nodes: Vec<&DescriptorConfig> = descriptors.iter().collect();
        // The sort is stable: prefixes keep the file's order.
        nodes.sort_by_key(|node| precedence(node));
        // The values before it are exact, and overlap with no other exact one.
        let first_wide = nodes.partition_point(|node| precedence(node) == 0);
        for (index, node) in nodes.iter().enumerate() {
            if above.iter().any(|own| own.key == node.key) {
                let what = format!("the entry `{}` twice in a descriptor is left out", node.key);
                self.note(node, &what);
                continue;
            }
            let mut path = above.clone();
            path.push(node);
            if let Some(rate) = &node.rate_limit {
                self.add_limit(&path, rate);
            }
            self.add_level(&node.descriptors, &path);
            let later = &nodes[first_wide.max(index + 1)..];
            let later = later.iter().filter(|later| overlap(node, later));
            let rests: BTreeSet<Vec<&str>> = later.flat_map(|later| rests(later)).collect();
            let repeats = |rest: &&Vec<&str>| path.iter().any(|own| rest.contains(&&*own.key));
            for rest in rests.iter().filter(|rest| !repeats(rest)) {
                self.stop(&path, rest);
            }
        }
    }

    /// Adds the item of a node's own limit.
    fn add_limit(&mut self, path: &NodePath<'_>, rate: &DescriptorRate) {
        let Some(node) = path.last() else { return };
        let enforce = !node.shadow_mode && !node.quota_mode;
        if node.quota_mode {
            self.note(node, "`quota_mode` becomes `enforce: false`; violations are not reported");
        }
        if !rate.replaces.is_empty() {
            self.note(node, "`replaces` is left out: both limits are charged");
        }
        let values = path.iter().map(|node| (node.key.clone(), pattern(node).to_owned())).collect();
        let counted = rate.quota.filter(|quota| quota.requests > 0);
        let Some(quota) = counted else {
            let is_blocked = rate.quota.is_some() && enforce;
            let answer = if is_blocked { ItemAnswer::Blocked } else { ItemAnswer::Unlimited };
            self.add_for(node, DomainItem { answer, values });
            return;
        };
        if !self.add_for(node, DomainItem { answer: ItemAnswer::Limit(self.limits.len()), values })
        {
            return;
        }
        let name = self.free_name(path, rate);
        let counted = path.iter().filter(|node| !is_shared(node));
        let window = Duration::from_millis(quota.window.as_ms());
        let key = counted.map(|node| node.key.clone()).collect();
        self.limits.push(ImportedLimit { name, key, quota: quota.requests, window, enforce });
    }

    /// Keeps later items from the descriptors of `path` that have further entries with the names in
    /// `rest`.
    fn stop(&mut self, path: &NodePath<'_>, rest: &[&str]) {
        let own = path.iter().map(|node| (node.key.clone(), pattern(node).to_owned()));
        let rest = rest.iter().map(|name| ((*name).to_owned(), ANY.to_owned()));
        let values = own.chain(rest).collect();
        self.add(DomainItem { answer: ItemAnswer::Unlimited, values });
    }

    /// As [`Self::add`], with a note if the item never applies.
    fn add_for(&mut self, node: &DescriptorConfig, item: DomainItem) -> bool {
        let is_added = self.add(item);
        if !is_added {
            self.note(node, "the limit is left out: an earlier one has all of its descriptors");
        }
        is_added
    }

    /// Adds an item unless an earlier one applies to all of its descriptors. True if it was added.
    fn add(&mut self, item: DomainItem) -> bool {
        let (names, values) =
            item.values.iter().map(|(name, value)| (name.clone(), value.clone())).unzip();
        let is_added = self.covered.entry(names).or_default().add(values);
        if is_added {
            self.items.push(item);
        }
        is_added
    }

    /// A name that no other limit has: the one in the file, or of its entries.
    fn free_name(&mut self, path: &NodePath<'_>, rate: &DescriptorRate) -> String {
        let entries = path.iter().map(|node| match &*node.value {
            "" => node.key.clone(),
            // The name of a limit is in metrics, logs and responses.
            _ if is_sensitive_name(&node.key) => format!("{}_value", node.key),
            value => format!("{}_{value}", node.key),
        });
        let entries = entries.collect::<Vec<_>>().join(".");
        let text = if rate.name.is_empty() { &entries } else { &rate.name };
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
        let plain = text.trim_end_matches('*').chars().map(|c| if is_plain(c) { c } else { '_' });
        let name: String = plain.take(MAX_NAME - MAX_NUMBER).collect();
        let name = if name.is_empty() { "limit".to_owned() } else { name };
        let first = self.names.get(&name).copied().unwrap_or(1);
        let numbered = (first..).map(|number| match number {
            1 => (number, name.clone()),
            _ => (number, format!("{name}-{number}")),
        });
        let is_free = |(_, own): &(u32, String)| !self.names.contains_key(own);
        let (number, free) = numbered.into_iter().find(is_free).unwrap_or((0, String::new()));
        self.names.insert(free.clone(), 2);
        self.names.insert(name, number + 1);
        free
    }

    /// An item as the configuration has it.
    fn item_text(&self, item: &DomainItem) -> String {
        let limit = match item.answer {
            ItemAnswer::Limit(index) => self.limits.get(index),
            ItemAnswer::Unlimited | ItemAnswer::Blocked => None,
        };
        // A limit's key names its entries.
        let is_keyed = |name| limit.is_some_and(|limit| limit.key.contains(name));
        let named = item.values.iter().filter(|(name, value)| *value != ANY || !is_keyed(*name));
        let values = named.map(|(name, value)| format!("{}: {}", quoted_key(name), quoted(value)));
        let values = values.collect::<Vec<_>>().join(", ");
        let answer = match (limit, &item.answer) {
            (Some(limit), _) if values.is_empty() => return quoted(&limit.name),
            (Some(limit), _) => format!("limit: {}", quoted(&limit.name)),
            (None, ItemAnswer::Blocked) => "quota: blocked".to_owned(),
            (None, _) => "quota: unlimited".to_owned(),
        };
        format!("{{{answer}, match: {{{values}}}}}")
    }

    fn note(&mut self, node: &DescriptorConfig, what: &str) {
        self.notes.push(format!("line {}: {}", node.location.line, escape(what)));
    }
}

impl CoveredValues {
    /// Adds values unless they are covered. True if they were added.
    fn add(&mut self, values: Vec<String>) -> bool {
        let has_all =
            |wide: &Vec<String>| wide.iter().zip(&values).all(|(own, other)| covers(own, other));
        if self.wide.iter().any(has_all) {
            return false;
        }
        if values.iter().any(|value| value.ends_with('*')) {
            self.wide.push(values);
            return true;
        }
        self.exact.insert(values)
    }
}

/// The order in which the tree chooses the nodes of one level.
fn precedence(node: &DescriptorConfig) -> u8 {
    match &*node.value {
        "" => 2,
        value if value.ends_with('*') => 1,
        _ => 0,
    }
}

/// What a domain's item matches where the tree has this node.
fn pattern(node: &DescriptorConfig) -> &str {
    if node.value.is_empty() { ANY } else { &node.value }
}

/// True if all values of the node share a counter.
fn is_shared(node: &DescriptorConfig) -> bool {
    node.share_threshold && node.value.ends_with('*')
}

/// True if `wide` matches every value that `narrow` matches.
fn covers(wide: &str, narrow: &str) -> bool {
    let beginning = narrow.strip_suffix('*').unwrap_or(narrow);
    wide.strip_suffix('*').map_or(wide == narrow, |start| beginning.starts_with(start))
}

/// True if some entry could choose each of the nodes.
fn overlap(one: &DescriptorConfig, other: &DescriptorConfig) -> bool {
    let (first, second) = (pattern(one), pattern(other));
    one.key == other.key && (covers(first, second) || covers(second, first))
}

/// The names of further entries for which the tree has a limit below a node; none for the node's
/// own limit.
fn rests(node: &DescriptorConfig) -> Vec<Vec<&str>> {
    let own = node.rate_limit.iter().map(|_| Vec::new());
    let below = node.descriptors.iter().flat_map(|next| {
        rests(next).into_iter().map(|mut rest| {
            rest.insert(0, &*next.key);
            rest
        })
    });
    own.chain(below).collect()
}

/// A text as a YAML key in quotes.
fn quoted_key(text: &str) -> String {
    // JSON's strings are YAML's, but for the characters that YAML allows only as escapes.
    let json = serde_json::Value::from(text).to_string();
    let escaped = json.chars().map(|c| match c {
        _ if is_unprintable(c) => format!("\\u{:04x}", u32::from(c)),
        _ => c.to_string(),
    });
    escaped.collect()
}

/// A text as a YAML value in quotes. References to variables stay text.
fn quoted(text: &str) -> String {
    quoted_key(&text.replace("${", "$${"))
}

impl fmt::Display for NativeDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "# Made by `tidegate import envoy-ratelimit`.")?;
        for note in &self.notes {
            writeln!(f, "# {note}")?;
        }
        writeln!(f, "rate_limit_service:\n  address: 127.0.0.1:8081\n  domains:")?;
        writeln!(f, "    {}:", quoted_key(&self.name))?;
        // As in envoyproxy/ratelimit. The default of a domain with `limits` refuses.
        writeln!(f, "      late_hits: charge\n      limits:")?;
        for item in &self.items {
            writeln!(f, "        - {}", self.item_text(item))?;
        }
        if !self.limits.is_empty() {
            writeln!(f, "\nlimits:")?;
        }
        for limit in &self.limits {
            writeln!(f, "  {limit}")?;
        }
        Ok(())
    }
}

impl fmt::Display for ImportedLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = self.key.iter().map(|name| quoted(&format!("descriptor:{name}")));
        let key = parts.collect::<Vec<_>>().join(", ");
        // As in envoyproxy/ratelimit. The default would slide.
        let Self { quota, window, .. } = self;
        let enforce = if self.enforce { "" } else { ", enforce: false" };
        let name = quoted_key(&self.name);
        write!(
            f,
            "{name}: {{algorithm: fixed_window, quota: {quota}, window: {window}, key: [{key}]{enforce}}}"
        )
    }
}
