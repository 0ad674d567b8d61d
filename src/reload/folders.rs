//! The folders in which a change may affect the file at a path.

use std::{
    collections::HashSet,
    ffi::OsString,
    path::{Path, PathBuf, absolute},
};

/// The maximum number of symbolic links on a path in Linux (ELOOP).
const MAX_LINKS: usize = 40;

/// Adds the folder of the file at `path` and the folder of each symbolic link on the way to it. The
/// added paths contain no links. If a part of the path is missing, adds the last existing folder,
/// in which it may appear.
pub(super) fn add_folders(path: &Path, folders: &mut HashSet<PathBuf>) {
    let Ok(path) = absolute(path) else { return };
    let (mut folder, mut ahead) = (PathBuf::new(), parts(&path));
    let mut links = 0;
    while let Some(part) = ahead.pop() {
        if part == ".." {
            folder.pop();
            continue;
        }
        // `join` with the part `/` replaces the folder.
        let next = folder.join(part);
        match next.symlink_metadata() {
            Ok(found) if found.is_symlink() && links < MAX_LINKS => {
                links += 1;
                folders.insert(folder.clone());
                let Ok(target) = next.read_link() else { return };
                ahead.extend(parts(&target));
            }
            Ok(found) if found.is_dir() && !ahead.is_empty() => folder = next,
            _ => break,
        }
    }
    folders.insert(folder);
}

/// The parts of a path, the last one first.
fn parts(path: &Path) -> Vec<OsString> {
    path.components().rev().map(|part| part.as_os_str().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    /// The watched folders of a path, relative to `root` and in order.
    fn watched(root: &Path, path: &Path) -> Vec<String> {
        let mut folders = HashSet::new();
        add_folders(path, &mut folders);
        let within = folders.iter().filter_map(|folder| folder.strip_prefix(root).ok());
        let mut within: Vec<String> = within.map(|folder| folder.display().to_string()).collect();
        within.sort();
        within
    }

    #[test]
    fn the_folder_of_each_link_on_the_way_is_watched() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        for folder in ["real/g1", "real/g2", "links", "app"] {
            fs::create_dir_all(root.join(folder)).unwrap();
        }
        fs::write(root.join("real/g1/tls.pem"), "1").unwrap();
        let path = root.join("app/tls.pem");
        let watched = || watched(&root, &path);
        assert_eq!(watched(), ["app"], "the file is missing");
        // Absolute, relative with `..`, and a link to a link.
        symlink(root.join("links/live/tls.pem"), &path).unwrap();
        assert_eq!(watched(), ["app", "links"], "the file may appear in `links`");
        symlink("../real/./cur", root.join("links/live")).unwrap();
        assert_eq!(watched(), ["app", "links", "real"]);
        symlink("g1", root.join("real/cur")).unwrap();
        assert_eq!(watched(), ["app", "links", "real", "real/g1"]);
        fs::remove_file(root.join("real/cur")).unwrap();
        symlink("g2", root.join("real/cur")).unwrap();
        assert_eq!(watched(), ["app", "links", "real", "real/g2"], "the file is missing there");
    }

    #[test]
    fn links_in_a_circle_end() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        symlink("b", root.join("a")).unwrap();
        symlink("a", root.join("b")).unwrap();
        assert_eq!(watched(&root, &root.join("a/tls.pem")), [""]);
    }
}
