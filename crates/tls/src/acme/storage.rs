//! [`AcmeStorage`]: the keys of accounts, and certificates with their keys, in a folder that only
//! the gateway's user can read. A file is replaced as a whole.

use std::{
    fs::{self, DirBuilder, File, OpenOptions, Permissions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

use rustix::fs::{Access, access};
use tidegate_redis::RedisFailure;
use tidegate_system::file::{FileError, READ_TIMEOUT, read_regular, read_within};

use super::seal::SealError;
use crate::Certificate;

/// The longest file that is read, in bytes.
const MAX_LEN: u64 = 1 << 20;
/// The largest number of files that are looked at for a certificate of other domains.
const MAX_FILES: usize = 1000;

/// The space that must be free before an order, in bytes.
const PROBE_LEN: usize = 16 * 1024;

/// The folder.
#[derive(Clone, Debug)]
pub struct AcmeStorage {
    folder: PathBuf,
}

/// Why the storage cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    /// A file cannot be read.
    #[error("cannot read `{path}`: {error}", path = .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        error: FileError,
    },
    /// A file or the folder cannot be written.
    #[error("cannot write `{path}`: {error}", path = .path.display())]
    Write {
        /// The file or the folder.
        path: PathBuf,
        /// The cause.
        error: io::Error,
    },
    /// Redis does not answer, or answers with an error.
    #[error("Redis cannot be used for certificates: {}", .0.label())]
    Redis(RedisFailure),
    /// A record in Redis cannot be used.
    #[error("the record `{name}` in Redis {error}")]
    Record {
        /// Its key.
        name: String,
        /// The cause.
        error: SealError,
    },
    /// Another gateway may order the certificate now.
    #[error("the lease of the order in Redis was lost: another gateway may order the certificate")]
    LostLease,
}

impl AcmeStorage {
    /// The storage in this folder, which need not exist.
    pub fn new(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// The path of the file `name`.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Makes the folder unless it is there, and checks that files can be written.
    ///
    /// # Errors
    ///
    /// They cannot.
    pub fn prepare(&self) -> Result<(), StorageError> {
        let failed = |error| StorageError::Write { path: self.folder.clone(), error };
        self.make_folder().map_err(failed)?;
        let probe = self.path(&format!(".probe.{}.tmp", std::process::id()));
        // As much as a certificate and an account need: a full disk may have room for an empty
        // file.
        let written = create(&probe).and_then(|mut file| file.write_all(&[b' '; PROBE_LEN]));
        let removed = fs::remove_file(&probe);
        written.and(removed).map_err(failed)
    }

    /// Checks that this process may write in the folder, or may make it, without doing so.
    ///
    /// # Errors
    ///
    /// It may not.
    pub fn check_access(&self) -> Result<(), StorageError> {
        let failed = |error| StorageError::Write { path: self.folder.clone(), error };
        let existing = self.folder.ancestors().find(|folder| folder.symlink_metadata().is_ok());
        let existing = existing.filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."));
        if !existing.is_dir() {
            return Err(failed(io::ErrorKind::NotADirectory.into()));
        }
        access(existing, Access::WRITE_OK | Access::EXEC_OK).map_err(|error| failed(error.into()))
    }

    fn make_folder(&self) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.folder)
    }

    /// The content of the file `name`; `None` if there is none.
    ///
    /// # Errors
    ///
    /// It cannot be read.
    pub fn read(&self, name: &str) -> Result<Option<Vec<u8>>, StorageError> {
        let path = self.path(name);
        let file = path.clone();
        match read_within(READ_TIMEOUT, move || read_regular(&file, MAX_LEN)) {
            Ok(content) => Ok(Some(content)),
            Err(FileError::Io(error)) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(StorageError::Read { path, error }),
        }
    }

    /// Replaces the file `name`, as a whole. Only the gateway's user can read it.
    ///
    /// # Errors
    ///
    /// It cannot be written; the old file stays.
    pub fn write(&self, name: &str, content: &[u8]) -> Result<(), StorageError> {
        let path = self.path(name);
        let temporary = self.path(&format!(".{name}.{}.tmp", std::process::id()));
        let write = || {
            self.make_folder()?;
            let mut file = create(&temporary)?;
            // The mode of a file that an earlier process left behind.
            file.set_permissions(Permissions::from_mode(0o600))?;
            file.write_all(content)?;
            file.sync_all()?;
            fs::rename(&temporary, &path)?;
            File::open(&self.folder)?.sync_all()
        };
        let written = write().inspect_err(|_| drop(fs::remove_file(&temporary)));
        written.map_err(|error| StorageError::Write { path: path.clone(), error })
    }

    /// Removes the file `name`, if it is there.
    ///
    /// # Errors
    ///
    /// It cannot be removed.
    pub fn remove(&self, name: &str) -> Result<(), StorageError> {
        let path = self.path(name);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(StorageError::Write { path, error })
            }
            _ => Ok(()),
        }
    }

    /// The certificate in the file `name`; `None` if there is no file, or no usable certificate in
    /// it, which is logged.
    pub fn certificate(&self, name: &str) -> Option<Certificate> {
        let content = self.read(name);
        let content =
            content.inspect_err(|error| tracing::warn!(%error, "a stored certificate is left out"));
        let parsed = Certificate::parse(&self.path(name), &content.ok()??);
        parsed.inspect_err(|error| tracing::warn!(%error, "a stored certificate is left out")).ok()
    }

    /// The stored certificate with most of `domains`, and of these the one that expires last;
    /// `None` if none has one of them. It serves while the one for all of them is ordered.
    pub fn closest(&self, domains: &[Box<str>]) -> Option<Certificate> {
        let files = fs::read_dir(&self.folder).ok()?.take(MAX_FILES).filter_map(Result::ok);
        let names = files.filter_map(|file| file.file_name().into_string().ok());
        let names = names.filter(|name| {
            Path::new(name).extension().is_some_and(|kind| kind == "pem") && !name.starts_with('.')
        });
        closest(names.filter_map(|name| self.certificate(&name)), domains)
    }
}

/// The certificate with most of `domains`, and of these the one that expires last; `None` if none
/// has one of them.
pub(super) fn closest(
    certificates: impl Iterator<Item = Certificate>,
    domains: &[Box<str>],
) -> Option<Certificate> {
    let covered = |own: &Certificate| domains.iter().filter(|name| own.covers(name)).count();
    let certificates = certificates.filter(|own| covered(own) > 0);
    certificates.max_by_key(|own| (covered(own), own.validity.not_after))
}

/// A new or emptied file that only the gateway's user can read.
fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn files_are_replaced_and_readable_by_one_user() {
        let folder = tempfile::tempdir().unwrap();
        let storage = AcmeStorage::new(folder.path().join("a/b"));
        assert!(storage.read("x.pem").unwrap().is_none());
        storage.prepare().unwrap();
        assert_eq!(mode(&folder.path().join("a/b")), 0o700);
        for content in [&b"one"[..], b"two"] {
            storage.write("x.pem", content).unwrap();
            assert_eq!(storage.read("x.pem").unwrap().as_deref(), Some(content));
            assert_eq!(mode(&storage.path("x.pem")), 0o600);
        }
        assert_eq!(fs::read_dir(folder.path().join("a/b")).unwrap().count(), 1, "nothing is left");
        storage.remove("x.pem").unwrap();
        storage.remove("x.pem").unwrap();
        assert!(storage.read("x.pem").unwrap().is_none());
    }

    #[test]
    fn a_storage_that_cannot_be_written_is_reported() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("file"), "").unwrap();
        let storage = AcmeStorage::new(folder.path().join("file"));
        for error in [storage.prepare(), storage.check_access()] {
            let error = error.unwrap_err().to_string();
            assert!(error.contains("/file`: "), "{error}");
        }
        assert!(AcmeStorage::new(folder.path().join("a/b")).check_access().is_ok());
        assert!(!folder.path().join("a").exists(), "a check makes no folder");
        assert!(storage.write("x.pem", b"").is_err());
        symlink("/nowhere/at/all", folder.path().join("link")).unwrap();
        assert!(AcmeStorage::new(folder.path().join("link")).prepare().is_err());
    }

    #[test]
    fn a_damaged_certificate_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let storage = AcmeStorage::new(folder.path().to_owned());
        for content in [&b""[..], b"-----BEGIN CERTIFICATE-----\nAA==\n", &[0xff; 100]] {
            storage.write("x.pem", content).unwrap();
            assert!(storage.certificate("x.pem").is_none());
            assert!(storage.closest(&["a.test".into()]).is_none());
        }
    }
}
