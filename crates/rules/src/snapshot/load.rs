//! Loads a file into a snapshot. A panic while reading a file becomes a fault of the file, so that
//! no file can end the process.

use std::{
    any::Any,
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
};

use tidegate_config::{
    self as config, EnvLookup, Fault, Faults, LoadedConfig, PlanConfig, ReadError,
};
use tidegate_system::file;

use super::{SecretReading, Snapshot};

/// The reason why a file could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file is faulty.
    #[error("{0}")]
    Faults(#[from] Faults),
    /// The file triggered a bug: the code that reads it panicked.
    #[error("{0}")]
    Panic(Fault),
}

impl LoadError {
    /// The faults to report; a panic counts as one.
    pub fn into_faults(self) -> Faults {
        match self {
            Self::Faults(faults) => faults,
            Self::Panic(fault) => fault.into(),
        }
    }
}

impl Snapshot {
    /// [`Self::load`], with the plans changed by `change` before they are compiled.
    ///
    /// # Errors
    ///
    /// As [`Self::load`].
    pub fn load_changed(
        path: &Path,
        env: EnvLookup<'_>,
        change: impl Fn(&mut BTreeMap<String, PlanConfig>),
    ) -> Result<(LoadedConfig, Self), LoadError> {
        let bytes = file::read(path, config::MAX_READ);
        let bytes = bytes.map_err(|error| config::unreadable(path, &error))?;
        let (mut loaded, _) = read(path, &bytes, env, SecretReading::Present(env))?;
        catch_panic(path, || {
            change(&mut loaded.config.plans);
            let snapshot = Self::compile(&loaded, SecretReading::Present(env))?;
            Ok((loaded, snapshot))
        })
    }

    /// Reads and compiles the file at `path` for a command, with environment variables from `env`.
    /// Secrets that this machine does not have are left out: [`SecretReading::Present`].
    ///
    /// # Errors
    ///
    /// The file cannot be read, or has a fault, as in [`Self::load_to_serve`].
    pub fn load(path: &Path, env: EnvLookup<'_>) -> Result<(LoadedConfig, Self), LoadError> {
        let bytes = file::read(path, config::MAX_READ);
        let bytes = bytes.map_err(|error| config::unreadable(path, &error))?;
        read(path, &bytes, env, SecretReading::Present(env))
    }

    /// Compiles the content of the file at `path` for a gateway, with environment variables and all
    /// secrets from `env`: [`SecretReading::Required`].
    ///
    /// # Errors
    ///
    /// All faults of the file: of syntax and type, and of [`Snapshot::compile`] for the part that
    /// could be read. Or the panic that the file caused.
    pub fn load_to_serve(
        path: &Path,
        bytes: &[u8],
        env: EnvLookup<'_>,
    ) -> Result<(LoadedConfig, Self), LoadError> {
        read(path, bytes, env, SecretReading::Required(env))
    }
}

fn read(
    path: &Path,
    bytes: &[u8],
    env: EnvLookup<'_>,
    secrets: SecretReading<'_>,
) -> Result<(LoadedConfig, Snapshot), LoadError> {
    catch_panic(path, || match config::parse_bytes(&path.display().to_string(), bytes, env) {
        Ok(loaded) => {
            let snapshot = Snapshot::compile(&loaded, secrets)?;
            Ok((loaded, snapshot))
        }
        Err(ReadError { faults, partial }) => {
            let semantic = partial.and_then(|partial| Snapshot::compile(&partial, secrets).err());
            Err(semantic.into_iter().fold(faults, Faults::merge).into())
        }
    })
}

/// Calls `read` for the file at `path` and turns a panic into an error.
///
/// # Errors
///
/// Those of `read`, and [`LoadError::Panic`].
pub fn catch_panic<T>(
    path: &Path,
    read: impl FnOnce() -> Result<T, LoadError>,
) -> Result<T, LoadError> {
    // Unwind safe: the partial result is dropped, and nothing else refers to it.
    catch_unwind(AssertUnwindSafe(read)).unwrap_or_else(|panic| {
        let what = format!("this file triggers a bug in Tidegate ({})", message(&*panic));
        let expected = "no panic: please report this with the file";
        Err(LoadError::Panic(Fault::of_file(&path.display().to_string(), &what, expected)))
    })
}

/// The message of a panic.
fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without a message")
}

#[cfg(test)]
mod tests {
    use super::*;

    type Read<'a> = &'a dyn Fn() -> Result<(), LoadError>;

    #[test]
    fn a_panic_is_reported_with_its_file() {
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
        for (message, panic) in reads {
            let error = catch_panic(path, panic).unwrap_err();
            assert!(matches!(error, LoadError::Panic(_)));
            let text = error.to_string();
            assert!(text.starts_with("own.yaml:1:1: this file triggers a bug"), "{text}");
            assert!(text.contains(message) && text.contains("please report this"), "{text}");
            assert_eq!(error.into_faults().iter().count(), 1);
        }
        assert_eq!(catch_panic(path, || Ok(5)).unwrap(), 5);
    }
}
