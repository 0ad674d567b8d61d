//! The file of overrides: read as a whole, and replaced as a whole.
//!
//! A change locks the file's folder, reads the file again, and replaces it: so two processes that
//! change it at the same time lose nothing, and a reader finds the old content or the new one. A
//! file with a fault is never replaced.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use rustix::fs::FlockOperation;
use tidegate_config::{Fault, Faults, OverrideFault, OverrideFields, OverrideSink, OverridesText};
use tidegate_system::clock::StoreTime;
use tidegate_system::file::{self, FileError, FileStamp};
use tidegate_system::secret::SharedSecret;

use super::{
    change::{OverrideChange, OverrideError},
    record::{Override, OverrideId, OverrideTarget},
    set::{MAX_OVERRIDES, OverrideSet},
};

/// Maximum size of the file, in bytes.
const MAX_LEN: u64 = 16 << 20;

/// What a file contains.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct OverridesContent {
    /// The overrides.
    pub set: OverrideSet,
    /// The secret under which the keys of overrides were hashed; `None` if none was written.
    pub secret: Option<SharedSecret>,
    /// The line of each override, by its id.
    pub lines: Vec<(OverrideId, usize)>,
}

/// Reads the file at `path`. A missing file has no overrides. May block; see [`file::read_within`].
///
/// # Errors
///
/// It cannot be read, is not UTF-8, or has a fault: all of them, up to 50.
pub fn read_file(path: &Path) -> Result<OverridesContent, Faults> {
    match read_text(path)? {
        Some(text) => parse_file(&path.display().to_string(), &text),
        None => Ok(OverridesContent::default()),
    }
}

/// The text of the file at `path`; `None` if it is missing.
pub(super) fn read_text(path: &Path) -> Result<Option<String>, Faults> {
    let name = path.display().to_string();
    let whole =
        |error: &FileError| Fault::of_whole_file(&name, &error.to_string(), error.expected());
    let bytes = match file::read_regular(path, MAX_LEN + 1) {
        Err(FileError::Io(error)) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        bytes => bytes.map_err(|error| Faults::from(whole(&error)))?,
    };
    if bytes.len() as u64 > MAX_LEN {
        return Err(whole(&FileError::TooLong(MAX_LEN)).into());
    }
    Ok(Some(tidegate_config::text_of(&name, &bytes)?.to_owned()))
}

/// Parses the text of a file, which is called `name` in faults.
///
/// # Errors
///
/// All its faults, up to 50.
pub fn parse_file(name: &str, text: &str) -> Result<OverridesContent, Faults> {
    let mut content = OverridesContent::default();
    let faults = OverridesText { name, text }.read(&mut content);
    Faults::new(faults).map_or(Ok(content), Err)
}

impl OverrideSink for OverridesContent {
    fn secret(&mut self, text: &str) -> Option<OverrideFault> {
        self.secret = SharedSecret::from_hex(text);
        let expected = "64 hexadecimal digits, as the gateway wrote them";
        self.secret.is_none().then(|| whole_fault("a malformed secret", expected))
    }

    fn add(&mut self, fields: OverrideFields, line: usize) -> Vec<OverrideFault> {
        let own = match Override::of_fields(&fields) {
            Ok(own) => own,
            Err(faults) => return faults,
        };
        let id = own.id();
        if self.set.get(id).is_some() {
            let before =
                self.lines.iter().find(|(other, _)| *other == id).map_or(0, |(_, line)| *line);
            let expected = format!("one override for a target; the first is in line {before}");
            return vec![whole_fault(
                format!("a second override of {}, {}", own.limit, own.target),
                expected,
            )];
        }
        if self.set.len() >= MAX_OVERRIDES {
            return vec![whole_fault("one override more", format!("at most {MAX_OVERRIDES}"))];
        }
        self.set.insert(own);
        self.lines.push((id, line));
        Vec::new()
    }
}

fn whole_fault(what: impl Into<String>, expected: impl Into<String>) -> OverrideFault {
    OverrideFault { field: None, what: what.into(), expected: expected.into() }
}

/// The text of a file with these overrides.
pub(super) fn text_of(overrides: &[&Override], secret: Option<SharedSecret>) -> String {
    let mut text = String::from(
        "# Overrides of this gateway. Its admin API writes this file, and keeps no comments. You may edit it.\n",
    );
    if let Some(secret) = secret {
        text.push_str(
            "# The secret under which keys were hashed. Keep it, or the overrides by key end.\n",
        );
        text.extend(["secret: \"", &secret.to_hex(), "\"\n"]);
    }
    text.push_str(if overrides.is_empty() { "overrides: []\n" } else { "overrides:\n" });
    for own in overrides {
        // `${` would be a reference to a variable.
        text.extend(["- ", &own.to_json().replace("${", "$${"), "\n"]);
    }
    text
}

/// The file of a gateway.
#[derive(Clone, Debug)]
pub(super) struct OverridesFile {
    pub(super) path: PathBuf,
    /// The secret under which this process hashes keys.
    pub(super) secret: SharedSecret,
}

/// What a change of the file did.
pub(super) struct FileChange {
    pub(super) before: Option<Arc<Override>>,
    pub(super) content: OverridesContent,
    pub(super) stamp: Option<FileStamp>,
}

impl OverridesFile {
    /// Makes `change` at `now`. Blocks.
    pub(super) fn change(
        &self,
        change: OverrideChange,
        known: &OverrideSet,
        now: StoreTime,
    ) -> Result<FileChange, OverrideError> {
        let failed = |error: io::Error| OverrideError::Write {
            path: self.path.display().to_string(),
            error: error.to_string(),
        };
        // Where a link leads to: the link stays.
        let target = fs::canonicalize(&self.path).unwrap_or_else(|_| self.path.clone());
        let folder = target.parent().filter(|folder| *folder != Path::new(""));
        let folder = File::open(folder.unwrap_or(Path::new("."))).map_err(failed)?;
        rustix::fs::flock(&folder, FlockOperation::LockExclusive)
            .map_err(|error| failed(error.into()))?;
        let mut content = read_file(&self.path).map_err(OverrideError::Faults)?;
        if !known.is_empty() && !self.path.exists() {
            // It was deleted: what it had stays in force.
            let has_key = known.iter().any(|(_, own)| change_secret(own, self.secret).is_some());
            content.secret = has_key.then_some(self.secret);
            content.set.clone_from(known);
        }
        if content.secret.is_some_and(|secret| secret != self.secret) && change.names_key() {
            return Err(OverrideError::OtherSecret);
        }
        content.set.remove_ended(now);
        let before = match change {
            OverrideChange::Set(new) => {
                if content.set.get(new.id()).is_none() && content.set.len() >= MAX_OVERRIDES {
                    return Err(OverrideError::Full);
                }
                content.secret = content.secret.or(change_secret(&new, self.secret));
                content.set.insert(new)
            }
            OverrideChange::Lift(id) => match content.set.remove(id) {
                Some(before) => Some(before),
                None => return Err(OverrideError::Unknown),
            },
        };
        let overrides: Vec<&Override> = content.set.iter().map(|(_, own)| &**own).collect();
        let text = text_of(&overrides, content.secret);
        // Readable by the gateway's user alone, unless the operator has made it readable by more.
        let before_mode = fs::metadata(&target).map_or(0o600, |file| file.permissions().mode());
        let mode = before_mode & if content.secret.is_some() { 0o770 } else { 0o777 };
        replace(&target, &text, mode).and_then(|()| folder.sync_all()).map_err(failed)?;
        Ok(FileChange { before, content, stamp: FileStamp::of(&self.path).ok() })
    }
}

/// The secret to write with `new`: its key means nothing without it.
fn change_secret(new: &Override, secret: SharedSecret) -> Option<SharedSecret> {
    matches!(new.target, OverrideTarget::Key(_)).then_some(secret)
}

/// Replaces the file at `path`, with these permissions.
fn replace(path: &Path, text: &str, mode: u32) -> io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.tmp", std::process::id()));
    let temporary = path.with_file_name(name);
    let write = || {
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&temporary)?;
        file.set_permissions(fs::Permissions::from_mode(mode))?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&temporary, path)
    };
    write().inspect_err(|_| drop(fs::remove_file(&temporary)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_base::time::ms;

    fn own(consumer: &str, quota: u64) -> Override {
        let text = format!(r#"{{"limit":"each","consumer":"{consumer}","quota":{quota}}}"#);
        Override::of_json(text.as_bytes()).unwrap()
    }

    fn file(folder: &Path) -> OverridesFile {
        let secret = SharedSecret::from_namespace("a");
        OverridesFile { path: folder.join("overrides.yaml"), secret }
    }

    const NOW: StoreTime = StoreTime::from_unix_ms(1_700_000_000_000);

    #[test]
    fn changes_replace_the_file_and_report_what_was_before() {
        let folder = tempfile::tempdir().unwrap();
        let file = file(folder.path());
        assert_eq!(read_file(&file.path).unwrap(), OverridesContent::default(), "a missing file");
        let set =
            |own| file.change(OverrideChange::Set(own), &OverrideSet::default(), NOW).unwrap();
        assert!(set(own("acme", 5)).before.is_none());
        assert_eq!(set(own("acme", 7)).before.unwrap().quota, tidegate_config::PlanQuota::Units(5));
        set(own("bread", 9));
        let mode = fs::metadata(&file.path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let read = read_file(&file.path).unwrap();
        assert_eq!((read.set.len(), read.secret), (2, None));
        let id = own("acme", 1).id();
        assert!(
            file.change(OverrideChange::Lift(id), &OverrideSet::default(), NOW)
                .unwrap()
                .before
                .is_some()
        );
        let again = file.change(OverrideChange::Lift(id), &OverrideSet::default(), NOW);
        assert!(matches!(again, Err(OverrideError::Unknown)));
        assert_eq!(read_file(&file.path).unwrap().set.len(), 1);
        let names: Vec<_> = fs::read_dir(folder.path()).unwrap().collect();
        assert_eq!(names.len(), 1, "no temporary file stays");
    }

    #[test]
    fn ended_overrides_are_removed_by_the_next_change() {
        let folder = tempfile::tempdir().unwrap();
        let file = file(folder.path());
        let short = Override { until: Some(NOW + ms(5)), ..own("short", 5) };
        file.change(OverrideChange::Set(short), &OverrideSet::default(), NOW).unwrap();
        file.change(OverrideChange::Set(own("acme", 5)), &OverrideSet::default(), NOW + ms(4))
            .unwrap();
        assert_eq!(read_file(&file.path).unwrap().set.len(), 2);
        file.change(OverrideChange::Set(own("bread", 5)), &OverrideSet::default(), NOW + ms(5))
            .unwrap();
        assert_eq!(read_file(&file.path).unwrap().set.len(), 2);
    }

    #[test]
    fn a_key_is_written_with_the_secret_of_its_hash() {
        let folder = tempfile::tempdir().unwrap();
        let file = file(folder.path());
        let by_key =
            Override { target: OverrideTarget::Key(tidegate_charge::Key(7)), ..own("a", 5) };
        file.change(OverrideChange::Set(by_key.clone()), &OverrideSet::default(), NOW).unwrap();
        assert_eq!(read_file(&file.path).unwrap().secret, Some(file.secret));
        let other = OverridesFile { secret: SharedSecret::from_namespace("b"), ..file.clone() };
        let refused = other.change(OverrideChange::Set(by_key), &OverrideSet::default(), NOW);
        assert!(matches!(refused, Err(OverrideError::OtherSecret)));
        other.change(OverrideChange::Set(own("acme", 5)), &OverrideSet::default(), NOW).unwrap();
        assert_eq!(read_file(&file.path).unwrap().secret, Some(file.secret), "it stays");
    }

    #[test]
    fn a_link_stays_and_a_secret_is_not_readable_by_others() {
        let folder = tempfile::tempdir().unwrap();
        let file = file(folder.path());
        let elsewhere = tempfile::tempdir().unwrap();
        let target = elsewhere.path().join("real.yaml");
        fs::write(&target, "overrides: []").unwrap();
        let mode = || fs::metadata(&target).unwrap().permissions().mode() & 0o777;
        fs::set_permissions(&target, fs::Permissions::from_mode(0o644)).unwrap();
        std::os::unix::fs::symlink(&target, &file.path).unwrap();
        file.change(OverrideChange::Set(own("acme", 5)), &OverrideSet::default(), NOW).unwrap();
        assert!(fs::symlink_metadata(&file.path).unwrap().is_symlink());
        assert_eq!((read_file(&target).unwrap().set.len(), mode()), (1, 0o644));
        let key = Override { target: OverrideTarget::Key(tidegate_charge::Key(7)), ..own("a", 5) };
        file.change(OverrideChange::Set(key), &OverrideSet::default(), NOW).unwrap();
        assert_eq!(mode(), 0o640);
        let nowhere = OverridesFile { path: "/nowhere/at/all.yaml".into(), ..file };
        let refused =
            nowhere.change(OverrideChange::Set(own("acme", 5)), &OverrideSet::default(), NOW);
        let Err(OverrideError::Write { path, .. }) = refused else { panic!("no error") };
        assert_eq!(path, "/nowhere/at/all.yaml");
    }

    #[test]
    fn concurrent_changes_lose_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let file = file(folder.path());
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let file = &file;
                scope.spawn(move || {
                    for number in 0..5 {
                        let new = own(&format!("c{thread}-{number}"), 5);
                        file.change(OverrideChange::Set(new), &OverrideSet::default(), NOW)
                            .unwrap();
                    }
                });
            }
        });
        assert_eq!(read_file(&file.path).unwrap().set.len(), 20);
    }

    #[test]
    fn a_faulty_file_is_reported_with_its_lines_and_never_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let file = file(folder.path());
        for (text, expected) in [
            ("[]", ":1:1: another value, expected a mapping with a list of `overrides`"),
            ("overrides: 7", ":1:12: another value, expected a list of overrides"),
            ("overrides:\n- 7", ":2:3: another value, expected a mapping such as"),
            ("override: []", ":1:1: unknown key `override`, expected `overrides`"),
            ("secret: 12", ":1:1: a malformed secret, expected 64"),
            (
                "overrides:\n- {limit: a, consumer: b, quota: lots}",
                ":2:34: `lots`, expected a quota such as 5000",
            ),
            (
                "overrides:\n- {limit: a, consumer: b, quotas: 1}",
                ":2:27: unknown key `quotas`, expected `quota`",
            ),
            (
                "overrides:\n- {limit: a, consumer: [b], quota: 1}",
                ":2:14: a list or a mapping, expected one value",
            ),
            ("overrides:\n- {limit: a, consumer: b, plan: c, quota: 1}", ":2:3: several targets"),
            ("overrides:\n- {limit: a, quota: 1}", ":2:3: no target"),
            ("overrides:\n- {consumer: b, quota: 1}", ":2:3: no `limit`"),
            (
                "overrides:\n- {limit: a, consumer: b, quota: 1, until: never}",
                ":2:44: `never`, expected a time",
            ),
            (
                "overrides:\n- {limit: a, consumer: b, quota: 1}\n- {limit: a, consumer: b, quota: 2}",
                ":3:3: a second override of a, consumer b, expected one override for a target; the first is in line 2",
            ),
            ("overrides: [", ":"),
        ] {
            fs::write(&file.path, text).unwrap();
            let faults = read_file(&file.path).unwrap_err().to_string();
            assert!(faults.contains(&format!("overrides.yaml{expected}")), "{text}: {faults}");
            let refused =
                file.change(OverrideChange::Set(own("acme", 5)), &OverrideSet::default(), NOW);
            assert!(matches!(refused, Err(OverrideError::Faults(_))), "{text}");
            assert_eq!(fs::read_to_string(&file.path).unwrap(), text);
        }
        for text in ["", "# nothing\n", "---", "null", "~", "overrides: ~"] {
            fs::write(&file.path, text).unwrap();
            let faults = read_file(&file.path).unwrap_err().to_string();
            assert!(faults.contains(": nothing, expected a list of overrides"), "{text}: {faults}");
            assert!(faults.contains("[]` for none"), "{text}: {faults}");
        }
        for text in ["overrides:\n", "overrides: []"] {
            fs::write(&file.path, text).unwrap();
            assert!(read_file(&file.path).unwrap().set.is_empty(), "{text}");
        }
    }

    #[test]
    fn values_by_hand_are_read() {
        let text = "overrides:
- limit: each
  consumer: acme
  quota: 100/1m
  until: 2026-12-01
  reason: 'a launch, for ${1}'
";
        let faults = parse_file("f.yaml", text).unwrap_err().to_string();
        assert!(faults.contains("f.yaml:6:"), "{faults}");
        let content = parse_file("f.yaml", &text.replace("${", "$${")).unwrap();
        let id = OverrideId::of("each", &OverrideTarget::Consumer("acme".into()));
        assert_eq!(
            content.set.get(id).unwrap().to_string(),
            "each, consumer acme: 100/1m until 2026-12-01T00:00:00Z"
        );
        assert_eq!(&*content.set.get(id).unwrap().reason, "a launch, for ${1}");
    }
}
