//! From a file to a snapshot. No file ends the process: a panic on the way is one of the faults.

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
};

use super::Snapshot;
use crate::config::{self, Fault, Faults, Loaded, Unread};

/// Why there is no snapshot of a file.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file is faulty.
    #[error("{0}")]
    Faults(#[from] Faults),
    /// The file brought out a bug: the code that reads it panicked.
    #[error("{0}")]
    Panic(Fault),
}

impl LoadError {
    /// What is told of it, as of a faulty file.
    pub fn into_faults(self) -> Faults {
        match self {
            Self::Faults(faults) => faults,
            Self::Panic(fault) => fault.into(),
        }
    }
}

impl Snapshot {
    /// Reads and compiles the file at `path`. The error holds all that is wrong with it at once:
    /// faults of form, and of what could be read all the same, faults of sense.
    pub fn load(path: &Path) -> Result<(Loaded, Self), LoadError> {
        contained(path, || match config::load(path) {
            Ok(loaded) => {
                let snapshot = Self::compile(&loaded)?;
                Ok((loaded, snapshot))
            }
            Err(Unread { faults, partial }) => {
                let more = partial.and_then(|partial| Self::compile(&partial).err());
                Err(more.into_iter().fold(faults, Faults::with).into())
            }
        })
    }
}

/// What `read` makes of the file at `path`; where it panics, that as an error.
pub(crate) fn contained<T>(
    path: &Path,
    read: impl FnOnce() -> Result<T, LoadError>,
) -> Result<T, LoadError> {
    // What it had half made is dropped, and nothing else has seen it.
    catch_unwind(AssertUnwindSafe(read)).unwrap_or_else(|panic| {
        let what = format!("this file brings out a bug of Tidegate ({})", message(&*panic));
        let expected = "to read it without a panic: please report this, with the file";
        Err(LoadError::Panic(Fault::of_file(&path.display().to_string(), &what, expected)))
    })
}

/// What the panic says.
fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without a message")
}

#[cfg(test)]
mod tests {
    use super::*;

    type Read<'a> = &'a dyn Fn() -> Result<(), LoadError>;

    #[test]
    fn a_panic_is_an_error_that_names_the_file_and_asks_for_a_report() {
        let path = Path::new("own.yaml");
        let five: u32 = "5".parse().unwrap();
        let reads: [(&str, Read<'_>); 4] = [
            ("just so", &|| panic!("just so")),
            ("it was 5", &|| panic!("it was {five}")),
            ("index out of bounds", &|| {
                let _ = vec![0][five as usize];
                Ok(())
            }),
            ("without a message", &|| std::panic::panic_any(five)),
        ];
        for (told, panic) in reads {
            let error = contained(path, panic).unwrap_err();
            assert!(matches!(error, LoadError::Panic(_)));
            let text = error.to_string();
            assert!(text.starts_with("own.yaml:1:1: this file brings out a bug"), "{text}");
            assert!(text.contains(told) && text.contains("please report this"), "{text}");
            assert_eq!(error.into_faults().iter().count(), 1);
        }
        assert_eq!(contained(path, || Ok(5)).unwrap(), 5);
    }
}
