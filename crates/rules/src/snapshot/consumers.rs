//! [`ConsumerSource`]: where the consumers are, and how they are read.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tidegate_access::auth::{ConsumerTable, ConsumerTableBuilder};
use tidegate_config::{
    self as config, Config, ConsumersText, Fault, Faults, RecordPart, RecordSink as _,
};
use tidegate_system::file::{self, FileError, READ_TIMEOUT};

use super::section::Section;

/// Maximum size of a file of consumers, in bytes.
const MAX_LEN: u64 = 1 << 30;

/// Where the consumers are. The consumers themselves are no part of the rules: they change without
/// a reload.
#[derive(Clone, Debug, Default)]
pub enum ConsumerSource {
    /// There are none.
    #[default]
    None,
    /// In the configuration.
    Entries(Arc<ConsumerTable>),
    /// In a file of their own.
    File(ConsumersFile),
    /// In Redis: the table has the plans alone.
    Redis(Arc<ConsumerTable>),
}

/// A file of consumers.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ConsumersFile {
    path: PathBuf,
    /// Its name in messages.
    name: Box<str>,
    /// The plans that its consumers may have.
    plans: Arc<[Box<str>]>,
}

impl ConsumerSource {
    /// Reads the consumers.
    ///
    /// # Errors
    ///
    /// The faults of the file.
    pub fn load(&self) -> Result<Arc<ConsumerTable>, Faults> {
        match self {
            Self::None => Ok(Arc::default()),
            Self::Entries(table) | Self::Redis(table) => Ok(Arc::clone(table)),
            Self::File(file) => file.load().map(Arc::new),
        }
    }

    /// True if they are in Redis, so that no record is read at the start.
    pub fn is_redis(&self) -> bool {
        matches!(self, Self::Redis(_))
    }

    /// The file, if the consumers are in one.
    pub fn file(&self) -> Option<&ConsumersFile> {
        match self {
            Self::File(file) => Some(file),
            Self::None | Self::Entries(_) | Self::Redis(_) => None,
        }
    }
}

impl ConsumersFile {
    /// Its name in messages: the path as configured, with references to environment variables.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the file.
    ///
    /// # Errors
    ///
    /// It cannot be read, is not UTF-8, or has a fault: all of them, up to 50.
    pub fn load(&self) -> Result<ConsumerTable, Faults> {
        let name = self.name.to_string();
        let path = self.path.clone();
        let bytes = file::read_within(READ_TIMEOUT, move || file::read_regular(&path, MAX_LEN + 1));
        let whole = |error: &FileError| {
            Fault::of_whole_file(&name, &error.to_string(), error.expected_at(&self.path))
        };
        let bytes = bytes.map_err(|error| Faults::from(whole(&error)))?;
        if bytes.len() as u64 > MAX_LEN {
            return Err(whole(&FileError::TooLong(MAX_LEN)).into());
        }
        let text = config::text_of(&name, &bytes)?;
        let mut builder = ConsumerTableBuilder::new(&self.plans);
        let faults = ConsumersText { name: &name, text }.read(&mut builder);
        match Faults::new(faults) {
            Some(faults) => Err(faults),
            None => Ok(builder.build()),
        }
    }
}

/// Compiles the section `consumers`.
pub(super) fn compile(root: &Section<'_>, config: &Config) -> ConsumerSource {
    let Some(configured) = &config.consumers else { return ConsumerSource::None };
    let section = root.at("consumers");
    let plans: Arc<[Box<str>]> = config.plans.keys().map(|name| name.as_str().into()).collect();
    if configured.redis {
        return in_redis(&section, config, configured, &plans);
    }
    match (&configured.file, configured.entries.is_empty()) {
        (Some(_), false) => {
            section.at("entries").fault_at_key("both `file` and `entries`", "one of them");
            ConsumerSource::None
        }
        (Some(path), true) => {
            let name = section.at("file").file_name(path).into();
            ConsumerSource::File(ConsumersFile { path: path.clone(), name, plans })
        }
        (None, _) => {
            let is_known = section.can_read(&["file", "entries", "redis"]);
            let has_entries = section.has_key("entries") || !is_known;
            if !has_entries {
                section.fault_at_key("no consumers", "`file`, `entries`, or `redis: true`");
            }
            ConsumerSource::Entries(Arc::new(entries(&section, &configured.entries, &plans)))
        }
    }
}

/// Consumers in Redis, which excludes other places, and needs a Redis.
fn in_redis(
    section: &Section<'_>,
    config: &Config,
    configured: &config::ConsumersConfig,
    plans: &[Box<str>],
) -> ConsumerSource {
    for (key, is_set) in
        [("file", configured.file.is_some()), ("entries", !configured.entries.is_empty())]
    {
        if is_set {
            section.at(key).fault_at_key(format!("`{key}` with `redis: true`"), "one of them");
        }
    }
    if config.store.redis.is_none() && section.root().can_read(&["store"]) {
        let what = "consumers in Redis, though the configuration has no Redis";
        section.at("redis").fault_at_key(what, "`store.redis`, or another place of consumers");
    }
    ConsumerSource::Redis(Arc::new(ConsumerTable::in_store(plans)))
}

/// The table of the consumers in the configuration. Reports faulty ones.
fn entries(
    section: &Section<'_>,
    entries: &[config::ConsumerConfig],
    plans: &[Box<str>],
) -> ConsumerTable {
    let mut builder = ConsumerTableBuilder::new(plans);
    for (index, entry) in entries.iter().enumerate() {
        if section.is_full() {
            break;
        }
        let section = section.at("entries").index(index);
        if !section.can_read(&["name", "plan", "keys", "password", "disabled"]) {
            continue;
        }
        for fault in builder.add(&entry.record(), section.at("name").line()) {
            section_of(&section, fault.part).fault(fault.what, &fault.expected);
        }
    }
    builder.build()
}

fn section_of<'s>(entry: &Section<'s>, part: RecordPart) -> Section<'s> {
    let key = |index| entry.at("keys").index(index);
    match part {
        RecordPart::Name => entry.at("name"),
        RecordPart::Plan => entry.at("plan"),
        RecordPart::BillingDay => entry.at("billing_day"),
        RecordPart::Password => entry.at("password"),
        RecordPart::KeyId(index) => key(index).at("id"),
        RecordPart::KeyHash(index) => key(index).at("sha256"),
        RecordPart::KeyExpiry(index) => key(index).at("expires"),
    }
}
