//! The files of certificates, with a digest to detect a change.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    io,
    path::{Path, PathBuf},
};

use tidegate_system::file::{FileError, READ_TIMEOUT, read_regular, read_within};

use super::TlsError;

/// The longest file that is read, in bytes.
const MAX_LEN: u64 = 1 << 20;

/// A file that was read, with a digest of its content.
#[derive(Clone, Debug)]
pub struct TlsFile {
    path: PathBuf,
    /// `None`: the file is missing.
    digest: Option<u64>,
}

impl TlsFile {
    /// Reads the file.
    ///
    /// # Errors
    ///
    /// It cannot be read, or is longer than 1 MiB.
    pub fn read(path: &Path) -> Result<(Self, Vec<u8>), TlsError> {
        let owned = path.to_owned();
        let content = read_within(READ_TIMEOUT, move || read_regular(&owned, MAX_LEN + 1));
        let content = content.map_err(|error| TlsError::Unreadable { path: shown(path), error })?;
        if content.len() as u64 > MAX_LEN {
            return Err(TlsError::Pem { path: shown(path), what: "longer than 1 MiB".to_owned() });
        }
        Ok((Self { path: path.to_owned(), digest: Some(digest(&content)) }, content))
    }

    /// The file's path, as configured.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The digest of the content; `None` if the file is missing.
    pub(super) fn digest(&self) -> Option<u64> {
        self.digest
    }

    /// Reads the file again. May block for as long as the file system does.
    #[must_use]
    pub fn read_again(&self) -> Self {
        let digest = match read_regular(&self.path, MAX_LEN + 1) {
            Ok(content) => Some(digest(&content)),
            Err(FileError::Io(error)) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => Some(digest(error.to_string().as_bytes())),
        };
        Self { path: self.path.clone(), digest }
    }

    /// True if `now`, a later reading of the same file, has other content, or if the file exists
    /// now but was missing before. A file that is missing now is no change: it may be in the middle
    /// of a replacement.
    pub fn has_changed(&self, now: &Self) -> bool {
        now.digest.is_some() && now.digest != self.digest
    }
}

/// The file's name for messages.
pub(super) fn shown(path: &Path) -> String {
    path.display().to_string()
}

fn digest(content: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    content.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_changed_once_it_is_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.pem");
        std::fs::write(&path, "one").unwrap();
        let (file, content) = TlsFile::read(&path).unwrap();
        assert_eq!(content, b"one");
        assert!(!file.has_changed(&file.read_again()));
        std::fs::write(&path, "two").unwrap();
        assert!(file.has_changed(&file.read_again()));
        std::fs::remove_file(&path).unwrap();
        let missing = file.read_again();
        assert!(!file.has_changed(&missing));
        std::fs::write(&path, "one").unwrap();
        assert!(missing.has_changed(&file.read_again()), "it is back");
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert!(file.has_changed(&file.read_again()), "it cannot be read any more");
    }
}
