//! What a user writes: the configuration's types, one file a section, and their reading.
//!
//! [`load`] reads a file, [`parse`] a text. Either gives the whole [`Config`] or every [`Fault`]
//! at once, each with its place in the file. What needs more than one value to be judged (does the
//! upstream exist? does the resolution divide the window?) is judged later, by the snapshot, which
//! makes the same kind of fault through [`Source::fault`].

mod admin;
mod client;
mod fault;
mod headers;
mod key_part;
mod limits;
mod listen;
mod nearest;
mod reader;
mod routes;
mod secret;
mod source;
mod store;
#[cfg(test)]
mod tests;
mod text;
mod throttle;
mod tiers;
mod tree;
mod twice;
mod units;
mod upstreams;

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use admin::{AccessLog, Admin, HostName};
pub use client::{Client, TokenSource};
pub use fault::{Fault, Faults, Location};
pub use headers::{Headers, Standard};
pub use key_part::KeyPart;
pub use limits::{Algorithm, Cost, Limit, OnFailure, Reserve};
pub use listen::{Http, Listener, Tls};
pub use nearest::nearest;
pub use routes::{Match, Method, Route};
pub use secret::{Secret, SecretError, Variables};
pub use source::Source;
pub use store::{Memory, Redis, RedisUrl, Sentinel, Shard, Store};
pub use throttle::{Mode, Throttle};
pub use tiers::{Candidate, Tier, TierMatch};
pub use units::{Address, Cidr, Duration, Maximum, Size, Status, Timeout, network};
pub use upstreams::{Balance, Health, HostPort, Protocol, Respond, Target, Upstream};

use fault::Found;

/// The longest file that is read, in bytes.
const MAX_FILE: usize = 16 << 20;
/// The most faults of a file that are told at once.
pub(crate) const MAX_FAULTS: usize = 50;

/// The configuration of a Tidegate gateway.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The addresses that clients connect to.
    #[serde(default = "Listener::standard")]
    pub listen: Vec<Listener>,
    /// Threads that serve; 0: one a core.
    #[serde(default)]
    pub workers: usize,
    /// The operator's port; left out: none.
    pub admin: Option<Admin>,
    /// How long requests in flight may take to finish when the gateway stops.
    #[serde(default = "Config::drain_timeout")]
    pub drain_timeout: Duration,
    /// Where the access log goes.
    #[serde(default)]
    pub access_log: AccessLog,
    /// What one client connection may cost.
    #[serde(default)]
    pub http: Http,
    /// Who is asking.
    #[serde(default)]
    pub client: Client,
    /// Which rate-limit headers an answer carries.
    #[serde(default)]
    pub headers: Headers,
    /// Where limits keep their counters.
    #[serde(default)]
    pub store: Store,
    /// Who answers, by name.
    pub upstreams: BTreeMap<String, Upstream>,
    /// How much may pass, by name. A limit that several routes use is one shared counter.
    #[serde(default)]
    pub limits: BTreeMap<String, Limit>,
    /// Admission by who is active; left out: none.
    pub throttle: Option<Throttle>,
    /// Which requests go where.
    pub routes: Vec<Route>,
}

impl Config {
    fn drain_timeout() -> Duration {
        Duration::from_secs(30)
    }
}

/// A configuration that could be read, and the text it was read from.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// What it says, defaults filled in.
    pub config: Config,
    /// Where it says so.
    pub source: Source,
}

/// What comes of a file that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{faults}")]
pub struct Unread {
    /// What is wrong with its form.
    pub faults: Faults,
    /// What could be read all the same: for telling what else is wrong, never for use.
    pub partial: Option<Box<Loaded>>,
}

impl From<Faults> for Unread {
    fn from(faults: Faults) -> Self {
        Self { faults, partial: None }
    }
}

/// Reads the file at `path`, which the faults name as given.
pub fn load(path: &Path) -> Result<Loaded, Unread> {
    let name = path.display().to_string();
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path);
    if let Err(error) = file.and_then(|f| f.take(MAX_FILE as u64 + 1).read_to_end(&mut bytes)) {
        return Err(unreadable(&name, "", &error.to_string(), "a file that can be read").into());
    }
    match std::str::from_utf8(&bytes) {
        Ok(text) => parse(&name, text),
        Err(error) => {
            let good = String::from_utf8_lossy(&bytes[..error.valid_up_to()]);
            Err(unreadable(&name, &good, "a byte that is not UTF-8", "text in UTF-8").into())
        }
    }
}

/// Reads `text`, with two readers that must agree; `name` is what the faults call the file.
pub fn parse(name: &str, text: &str) -> Result<Loaded, Unread> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if text.len() > MAX_FILE {
        return Err(unreadable(name, "", "a file of more than 16 MiB", "at most 16 MiB").into());
    }
    let place = |(location, found)| Fault::new(name, text, location, found);
    let (root, mut faults) = match tree::read(text) {
        Ok((root, faults)) => (Some(root), faults),
        Err(faults) => (None, faults),
    };
    let (config, left_out) = match root.as_deref().map(reader::read::<Config>) {
        Some(Ok(config)) => (Some(config), None),
        Some(Err(unread)) => {
            faults.extend(unread.faults);
            unread.partial.unzip()
        }
        None => (None, None),
    };
    faults.sort_by_key(|&(location, _)| location);
    faults.truncate(MAX_FAULTS);
    let faults = Faults::new(faults.into_iter().map(place).collect());
    let loaded = root.zip(config).map(|(root, config)| {
        let (name, text) = (name.into(), text.into());
        let left_out = Arc::new(left_out.unwrap_or_default());
        Loaded { config, source: Source { name, text, root, left_out } }
    });
    match (loaded, faults) {
        (Some(mut loaded), None) => {
            loaded.config = twice::agreed(&loaded.source, &loaded.config).map_err(Faults::from)?;
            Ok(loaded)
        }
        (partial, Some(faults)) => Err(Unread { faults, partial: partial.map(Box::new) }),
        (None, None) => Err(unreadable(name, "", "no configuration", "a YAML document").into()),
    }
}

/// A fault of the file as a whole, or of the place where `good`, its readable start, ends.
fn unreadable(name: &str, good: &str, what: &str, expected: &str) -> Faults {
    let line = good.matches('\n').count() + 1;
    let column = good.rsplit('\n').next().map_or(0, |last| last.chars().count()) + 1;
    let location = Location { line, column, width: 1 };
    Fault::new(name, good, location, Found::new(what, expected)).into()
}

/// The configuration's JSON Schema; editors complete from it.
pub fn schema() -> schemars::Schema {
    schemars::schema_for!(Config)
}
