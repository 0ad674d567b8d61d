use crate::config::{Duration, Fault, Source, Timeout, nearest};

/// Collects the faults of a configuration while it is compiled.
pub(super) struct Check<'a> {
    source: &'a Source,
    pub(super) faults: Vec<Fault>,
    pub(super) notes: Vec<Fault>,
}

impl<'a> Check<'a> {
    pub(super) fn new(source: &'a Source) -> Self {
        Self { source, faults: Vec::new(), notes: Vec::new() }
    }

    /// Notes a fault of the value at `path`, unless it could not be read in the first place.
    pub(super) fn fault(&mut self, path: &str, what: impl Into<String>, expected: &str) {
        if self.source.is_unread(path) {
            return;
        }
        self.faults.push(self.source.fault(path, what, expected));
    }

    /// Whether the value at `path` could not be read.
    pub(super) fn is_unread(&self, path: &str) -> bool {
        self.source.is_unread(path)
    }

    /// Notes what works, and what the operator may not have meant.
    pub(super) fn note(&mut self, path: &str, what: impl Into<String>, expected: &str) {
        self.notes.push(self.source.fault(path, what, expected));
    }

    /// Notes a fault of the value at `path` unless it `holds`.
    pub(super) fn ensure(&mut self, holds: bool, path: &str, what: &str, expected: &str) {
        if !holds {
            self.fault(path, what, expected);
        }
    }

    /// Notes that the value at `path` is known, and that this version cannot do it yet.
    pub(super) fn unbuilt(&mut self, path: &str, what: &str, expected: &str) {
        self.fault(path, format!("{what} is not in this version"), expected);
    }

    /// The line of the value at `path`, from 1.
    pub(super) fn line(&self, path: &str) -> usize {
        self.source.fault(path, "", "").location.line
    }

    /// Notes a time of nothing where nothing could ever be done in time.
    pub(super) fn some_time(&mut self, path: &str, time: Duration) {
        self.ensure(time.millis() > 0, path, &format!("`{time}`"), "a time of at least 1ms");
    }

    /// The same of a time that may be off.
    pub(super) fn some_timeout(&mut self, path: &str, timeout: Timeout) {
        let expected = "a time of at least 1ms, or off";
        self.ensure(timeout.millis() != Some(0), path, &format!("`{timeout}`"), expected);
    }

    /// Notes a name, used as a key at `path`, that could not stand in a header, a metric or a
    /// Redis key.
    pub(super) fn key_name(&mut self, path: &str, name: &str) {
        if !is_name(name) {
            self.faults.push(self.source.fault_at_key(path, format!("`{name}`"), NAME));
        }
    }

    /// As [`Check::key_name`], of a name that is the value at `path`.
    pub(super) fn value_name(&mut self, path: &str, name: &str) {
        self.ensure(is_name(name), path, &format!("`{name}`"), NAME);
    }

    /// Notes a reference at `path` to a `kind` that is not among the `known`.
    pub(super) fn reference<'n>(
        &mut self,
        path: &str,
        kind: &str,
        name: &str,
        known: impl Iterator<Item = &'n String> + Clone,
    ) {
        let section = format!("{kind}s");
        let unread = self.source.names(&section).any(|unread| unread == name);
        if unread || known.clone().any(|known| known == name) {
            return;
        }
        let names: Vec<&str> = known.map(String::as_str).collect();
        let expected = match nearest(name, names.iter().copied()) {
            Some(near) => format!("`{near}`"),
            None if names.is_empty() => format!("the name of one (no {kind} is defined)"),
            None => format!("one of {}", names.join(", ")),
        };
        self.fault(path, format!("unknown {kind} `{name}`"), &expected);
    }
}

const NAME: &str = "a name of 1 to 64 letters, digits, `_`, `.` or `-`";

fn is_name(name: &str) -> bool {
    let fits = |b: u8| b.is_ascii_alphanumeric() || b"_.-".contains(&b);
    (1..=64).contains(&name.len()) && name.bytes().all(fits)
}
