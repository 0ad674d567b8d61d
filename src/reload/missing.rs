//! [`MissingFiles`]: finds the watched files that have been deleted.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
};

/// The watched files that do not exist.
#[derive(Default)]
pub(super) struct MissingFiles {
    /// Each with true once it was reported.
    known: BTreeMap<PathBuf, bool>,
}

impl MissingFiles {
    /// Checks `files`. Returns the files that were missing in the check before as well, each once:
    /// one may be missing for a moment while it is replaced.
    pub(super) fn check(&mut self, files: Vec<PathBuf>) -> Vec<PathBuf> {
        let mut before = std::mem::take(&mut self.known);
        let mut reported = Vec::new();
        for file in files.into_iter().filter(|file| is_missing(file)) {
            let was_reported = before.remove(&file);
            if was_reported == Some(false) {
                reported.push(file.clone());
            }
            self.known.insert(file, was_reported.is_some());
        }
        reported
    }
}

fn is_missing(file: &Path) -> bool {
    file.metadata().is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_stays_away_is_reported_once() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.pem");
        let mut missing = MissingFiles::default();
        let mut check = || missing.check(vec![file.clone()]);
        std::fs::write(&file, "").unwrap();
        assert!(check().is_empty());
        // It is being replaced.
        std::fs::remove_file(&file).unwrap();
        assert!(check().is_empty());
        std::fs::write(&file, "").unwrap();
        assert!(check().is_empty());
        for _ in 0..2 {
            std::fs::remove_file(&file).unwrap();
            assert_eq!((check(), check(), check()), (vec![], vec![file.clone()], vec![]));
            std::fs::write(&file, "").unwrap();
            assert!(check().is_empty());
        }
    }
}
