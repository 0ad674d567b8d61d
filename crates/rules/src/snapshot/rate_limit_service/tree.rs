//! The tree of descriptors of a file of envoyproxy/ratelimit, and its limits.
//!
//! A descriptor is looked up entry by entry: at each level the node with its value, else the first
//! with the beginning of its value, else the one of any value. A limit applies to descriptors that
//! end at its node, and counts them by the values of all of their entries.

use std::sync::Arc;

use ahash::RandomState;
use hashbrown::{HashMap, HashSet};
use smallvec::SmallVec;
use tidegate_base::sensitive::is_sensitive_name;
use tidegate_charge::{Limit, LimitIdentity};
use tidegate_config::{
    AlgorithmConfig, Config, DescriptorConfig, DescriptorQuota, DescriptorRate, DescriptorsFile,
    Duration, LimitConfig, WindowConfig,
};
use tidegate_identity::{DescriptorEntry, KeyPart};
use tidegate_limit::{Algorithm, Quota};

use super::super::limits::{self, NamedLimit};
use super::super::policy::LimitPolicy;
use super::super::section::Section;

/// A tree of descriptors.
#[derive(Debug, Default)]
pub(super) struct DescriptorTree {
    /// The first is the root's.
    levels: Vec<TreeLevel>,
    nodes: Vec<TreeNode>,
}

/// The entries that may follow a node.
#[derive(Debug, Default)]
struct TreeLevel {
    keys: HashMap<Box<str>, LevelKey, RandomState>,
}

/// The nodes of one name at a level, as indices.
#[derive(Debug, Default)]
struct LevelKey {
    exact: HashMap<Box<str>, usize, RandomState>,
    /// Beginnings of values, in the file's order.
    prefixes: Vec<(Box<str>, usize)>,
    any: Option<usize>,
}

/// An entry of the tree.
#[derive(Debug)]
struct TreeNode {
    rate: Option<NodeRate>,
    /// What is counted instead of the entry's value, because all values of the node share a
    /// counter.
    shared: Option<Box<str>>,
    /// The index of the level of what may follow.
    next: Option<usize>,
}

/// The limit of a node.
#[derive(Debug)]
pub(super) struct NodeRate {
    pub(super) limit: NodeLimit,
    /// Empty without one.
    pub(super) name: Box<str>,
    /// The names of the limits that it replaces.
    pub(super) replaces: Box<[Box<str>]>,
}

#[derive(Debug)]
pub(super) enum NodeLimit {
    /// Nothing is counted.
    Unlimited,
    /// Nothing is admitted.
    Blocked(Arc<Limit>),
    /// The limit with this index in its domain.
    Counted(usize),
}

/// The limit of a descriptor, and the values by which it counts.
pub(super) struct FoundRate<'t> {
    pub(super) rate: &'t NodeRate,
    pub(super) values: SmallVec<[&'t str; 4]>,
}

/// What a file compiles to.
#[derive(Default)]
pub(super) struct CompiledTree {
    pub(super) tree: DescriptorTree,
    pub(super) limits: Vec<Arc<LimitPolicy>>,
    /// The indices of limits that report instead of refusing.
    pub(super) reporting: HashSet<usize, RandomState>,
}

impl DescriptorTree {
    /// The limit of a descriptor; `None` if the tree has none.
    pub(super) fn find<'t>(&'t self, entries: &[DescriptorEntry<'t>]) -> Option<FoundRate<'t>> {
        let (mut level, mut values) = (self.levels.first(), SmallVec::new());
        let (last, before) = entries.split_last()?;
        for entry in before {
            let node = &self.nodes[level?.find(entry)?];
            values.push(node.counted(entry));
            level = node.next.map(|next| &self.levels[next]);
        }
        let node = &self.nodes[level?.find(last)?];
        values.push(node.counted(last));
        node.rate.as_ref().map(|rate| FoundRate { rate, values })
    }
}

impl TreeLevel {
    fn find(&self, entry: &DescriptorEntry<'_>) -> Option<usize> {
        let key = self.keys.get(entry.name)?;
        let prefix = || key.prefixes.iter().find(|(start, _)| entry.value.starts_with(&**start));
        let exact = key.exact.get(entry.value).copied();
        exact.or_else(|| prefix().map(|(_, node)| *node)).or(key.any)
    }
}

impl TreeNode {
    fn counted<'t>(&'t self, entry: &DescriptorEntry<'t>) -> &'t str {
        self.shared.as_deref().unwrap_or(entry.value)
    }
}

/// Compiles the file of the domain `domain`, at `section`. Its limits have the indices from
/// `first_index` on.
pub(super) fn compile(
    section: &Section<'_>,
    domain: &str,
    file: &DescriptorsFile,
    config: &Config,
    first_index: usize,
) -> CompiledTree {
    let names = HashSet::default();
    let mut compiler = TreeCompiler {
        section,
        domain,
        config,
        first_index,
        names,
        compiled: CompiledTree::default(),
    };
    compiler.level(&file.descriptors, &TreePlace::default());
    compiler.compiled
}

struct TreeCompiler<'c> {
    section: &'c Section<'c>,
    domain: &'c str,
    config: &'c Config,
    first_index: usize,
    /// The names of limits so far.
    names: HashSet<String, RandomState>,
    compiled: CompiledTree,
}

/// Where in the tree a node is.
#[derive(Clone, Default)]
struct TreePlace {
    /// The path of its limit's name, after the domain.
    path: String,
    key: Vec<KeyPart>,
}

impl TreeCompiler<'_> {
    /// Compiles the entries that may follow one another's. Returns the index of their level.
    fn level(&mut self, descriptors: &[DescriptorConfig], above: &TreePlace) -> usize {
        let index = self.compiled.tree.levels.len();
        self.compiled.tree.levels.push(TreeLevel::default());
        for descriptor in descriptors {
            let node = self.node(descriptor, above);
            let level = &mut self.compiled.tree.levels[index];
            let key = level.keys.entry(descriptor.key.as_str().into()).or_default();
            match (descriptor.value.strip_suffix('*'), &*descriptor.value) {
                (_, "") => key.any = Some(node),
                (Some(start), _) => key.prefixes.push((start.into(), node)),
                (None, value) => drop(key.exact.insert(value.into(), node)),
            }
        }
        index
    }

    /// Compiles an entry and what follows it. Returns its index.
    fn node(&mut self, descriptor: &DescriptorConfig, above: &TreePlace) -> usize {
        let mut place = above.clone();
        place.key.push(KeyPart::Descriptor(descriptor.key.clone()));
        if !place.path.is_empty() {
            place.path.push('.');
        }
        place.path += &descriptor.key;
        if !descriptor.value.is_empty() {
            place.path.push('_');
            // The name of a limit is in metrics, logs and responses.
            let is_secret = is_sensitive_name(&descriptor.key);
            place.path += if is_secret { "value" } else { &descriptor.value };
        }
        let rate = descriptor.rate_limit.as_ref().map(|rate| self.rate(descriptor, rate, &place));
        let has_next = !descriptor.descriptors.is_empty();
        let next = has_next.then(|| self.level(&descriptor.descriptors, &place));
        let is_shared = descriptor.share_threshold && descriptor.value.ends_with('*');
        let shared = is_shared.then(|| descriptor.value.as_str().into());
        self.compiled.tree.nodes.push(TreeNode { rate, shared, next });
        self.compiled.tree.nodes.len() - 1
    }

    fn rate(
        &mut self,
        descriptor: &DescriptorConfig,
        rate: &DescriptorRate,
        place: &TreePlace,
    ) -> NodeRate {
        let enforce = !descriptor.shadow_mode && !descriptor.quota_mode;
        let limit = match rate.quota {
            None => NodeLimit::Unlimited,
            Some(DescriptorQuota { requests: 0, .. }) if !enforce => NodeLimit::Unlimited,
            Some(DescriptorQuota { requests: 0, window }) => {
                let identity = LimitIdentity::new(self.name(&place.path), window.as_ms());
                let quota = Quota::new(0, window, Algorithm::FixedWindow);
                NodeLimit::Blocked(Arc::new(Limit::new(identity, quota)))
            }
            Some(quota) => NodeLimit::Counted(self.counted(quota, enforce, place)),
        };
        if let (NodeLimit::Counted(index), true) = (&limit, descriptor.quota_mode) {
            self.compiled.reporting.insert(*index);
        }
        let replaces = rate.replaces.iter().map(|name| name.as_str().into()).collect();
        NodeRate { limit, name: rate.name.as_str().into(), replaces }
    }

    /// Compiles a limit. Returns its index in the domain.
    fn counted(&mut self, quota: DescriptorQuota, enforce: bool, place: &TreePlace) -> usize {
        let name = self.name(&place.path);
        let index = self.compiled.limits.len();
        let limit = limit_of(quota, enforce, place.key.clone());
        let named = NamedLimit { name: &name, limit: &limit, index: self.first_index + index };
        let policy = limits::compile_one(self.section, &named, self.config, &[]);
        self.compiled.limits.push(policy);
        index
    }

    /// A name that no other limit has: as statistics of envoyproxy/ratelimit, but with a colon
    /// after the domain, which no configured name has, and with printable characters that header
    /// fields can quote.
    fn name(&mut self, path: &str) -> String {
        let name = format!("{}:{}", self.domain, super::plain_text(path));
        let numbered = (2..).map(|number| format!("{name}:{number}"));
        let free =
            std::iter::once(name.clone()).chain(numbered).find(|own| !self.names.contains(own));
        let free = free.unwrap_or(name);
        self.names.insert(free.clone());
        free
    }
}

/// The limit of a quota of envoyproxy/ratelimit, as a configuration has it.
pub(crate) fn limit_of(quota: DescriptorQuota, enforce: bool, key: Vec<KeyPart>) -> LimitConfig {
    let window = WindowConfig::Length(Duration::from_millis(quota.window.as_ms()));
    LimitConfig {
        algorithm: AlgorithmConfig::FixedWindow,
        key,
        enforce,
        ..LimitConfig::new(quota.requests.into(), window)
    }
}
