//! Secrets by reference: the file names where a secret is, never the secret itself.

use std::{
    ffi::OsString,
    fmt, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use tidegate_scalar::{ScalarValue, impl_scalar};
use tidegate_system::file::{FileError, read_whole};

/// The longest secret that is read from a file, in bytes.
const MAX_SECRET: u64 = 4_096;

/// Looks up an environment variable. Only the binary reads the environment; it passes this function
/// down.
pub type EnvLookup<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// An [`EnvLookup`] to keep while the gateway runs: each reload looks variables up again.
pub type Environment = Arc<dyn Fn(&str) -> Option<OsString> + Send + Sync>;

/// Where a secret is read from.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum SecretReference {
    /// An environment variable, by name.
    Variable(String),
    /// A file: its content without a final line break.
    File(PathBuf),
}

/// The reason why a secret cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// The variable is not set.
    #[error("the environment variable {0} is not set")]
    Missing(String),
    /// The variable's value is not UTF-8.
    #[error("the secret in {0} is not UTF-8")]
    NotUtf8(String),
    /// The file cannot be read, is not UTF-8 or is too long.
    #[error("cannot read the secret in {path}: {error}", path = .path.display())]
    File {
        /// The file as configured.
        path: PathBuf,
        /// The cause.
        error: io::Error,
    },
    /// The secret is empty or only white space.
    #[error("the secret in {0} is empty or only white space")]
    Empty(String),
    /// The secret is too short to resist guessing.
    #[error("the secret in {reference} is shorter than {min} bytes: {len}")]
    Short {
        /// Where the secret is, as configured.
        reference: String,
        /// The secret's length in bytes.
        len: usize,
        /// The required length in bytes.
        min: usize,
    },
}

impl SecretError {
    /// What a secret must be instead, where it is read.
    pub fn expected(&self) -> String {
        match self {
            Self::Short { min, .. } => format!("at least {min} random bytes"),
            _ => "a secret that the gateway can read when it starts".to_owned(),
        }
    }

    /// True if the secret is invalid on every machine; false if it is only missing on this one.
    pub fn is_fault(&self) -> bool {
        match self {
            Self::Missing(_) => false,
            Self::File { error, .. } => {
                matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::FileTooLarge)
            }
            Self::NotUtf8(_) | Self::Empty(_) | Self::Short { .. } => true,
        }
    }
}

impl SecretReference {
    /// Reads the secret from its file, or through `env`.
    ///
    /// # Errors
    ///
    /// The secret is missing, unreadable, not UTF-8, too long, empty or only white space.
    pub fn reveal(&self, env: EnvLookup<'_>) -> Result<Box<str>, SecretError> {
        let text = match self {
            Self::Variable(name) => {
                let value = env(name).ok_or_else(|| SecretError::Missing(name.clone()))?;
                value.into_string().map_err(|_| SecretError::NotUtf8(self.to_string()))?
            }
            Self::File(path) => {
                read_file(path).map_err(|error| SecretError::File { path: path.clone(), error })?
            }
        };
        let line = text.strip_suffix('\n').unwrap_or(&text);
        let line = line.strip_suffix('\r').unwrap_or(line);
        if line.trim().is_empty() {
            Err(SecretError::Empty(self.to_string()))
        } else {
            Ok(line.into())
        }
    }

    /// Like [`SecretReference::reveal`], for a secret that needs at least `min` bytes, not counting
    /// surrounding white space.
    ///
    /// # Errors
    ///
    /// Those of [`SecretReference::reveal`], and [`SecretError::Short`].
    pub fn reveal_at_least(&self, min: usize, env: EnvLookup<'_>) -> Result<Box<str>, SecretError> {
        let text = self.reveal(env)?;
        let (reference, len) = (self.to_string(), text.trim().len());
        if len < min { Err(SecretError::Short { reference, len, min }) } else { Ok(text) }
    }
}

fn read_file(path: &Path) -> io::Result<String> {
    let bytes = read_whole(path, MAX_SECRET).map_err(FileError::into_io)?;
    let invalid = |_| io::Error::new(io::ErrorKind::InvalidData, "not UTF-8");
    String::from_utf8(bytes).map_err(invalid)
}

impl ScalarValue for SecretReference {
    const EXPECTED: &'static str = "env:NAME or file:PATH, never the secret itself";
    const PATTERN: &'static str = "^(env:[A-Za-z_][A-Za-z0-9_]*|file:.+)$";
    const EXAMPLE: &'static str = "env:TIDEGATE_SECRET";
    const SECRET: bool = true;

    fn parse(text: &str) -> Option<Self> {
        if let Some(path) = text.strip_prefix("file:") {
            return (!path.is_empty()).then(|| Self::File(path.into()));
        }
        let name = text.strip_prefix("env:")?;
        let is_allowed = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
        let first = name.bytes().next()?;
        (name.bytes().all(is_allowed) && !first.is_ascii_digit())
            .then(|| Self::Variable(name.to_owned()))
    }
}

impl fmt::Display for SecretReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Variable(name) => write!(f, "env:{name}"),
            Self::File(path) => write!(f, "file:{}", path.display()),
        }
    }
}

impl_scalar!(SecretReference);

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::ffi::OsStringExt as _};

    use super::*;

    #[test]
    fn references_are_parsed_and_literal_secrets_are_refused() {
        for good in ["env:REDIS_PASSWORD", "env:_1", "file:/run/secrets/redis", "file:here"] {
            assert_eq!(SecretReference::parse(good).unwrap().to_string(), good);
        }
        for bad in ["hunter2", "env:", "env:1A", "env:A B", "file:", "ENV:A", ""] {
            assert!(SecretReference::parse(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn the_final_line_break_is_not_part_of_a_secret() {
        let variables = |name: &str| (name == "HERE").then(|| "hush\n".into());
        let reveal = |name: &str| SecretReference::Variable(name.to_owned()).reveal(&variables);
        assert_eq!(&*reveal("HERE").unwrap(), "hush");
        let gone = reveal("GONE").unwrap_err();
        assert!(gone.to_string().contains("GONE is not set") && !gone.is_fault(), "{gone}");
        let invalid = |_: &str| Some(OsString::from_vec(b"0123456789abcdef\xff".to_vec()));
        let invalid = SecretReference::Variable("HERE".to_owned()).reveal(&invalid).unwrap_err();
        assert!(
            invalid.to_string().contains("env:HERE is not UTF-8") && invalid.is_fault(),
            "{invalid}"
        );

        let file = tempfile::NamedTempFile::new().unwrap();
        let secret = SecretReference::File(file.path().to_owned());
        assert!(matches!(secret.reveal(&variables), Err(SecretError::Empty(_))));
        for (content, expected) in [("a b\r\n", "a b"), (" x\n\n", " x\n"), ("p", "p")] {
            fs::write(file.path(), content).unwrap();
            assert_eq!(&*secret.reveal(&variables).unwrap(), expected);
        }
        fs::write(file.path(), "x".repeat(5_000)).unwrap();
        assert!(secret.reveal(&variables).is_err());
        fs::write(file.path(), "0123456789abcde\n").unwrap();
        let short = secret.reveal_at_least(16, &variables).unwrap_err().to_string();
        assert!(short.contains("shorter than 16 bytes: 15") && !short.contains("abcde"), "{short}");
        assert!(secret.reveal_at_least(15, &variables).is_ok());
        for unfit in [&[b' '; 20][..], &[0xff; 20], &[b'x'; 5_000]] {
            fs::write(file.path(), unfit).unwrap();
            assert!(secret.reveal_at_least(16, &variables).is_err_and(|error| error.is_fault()));
        }
        let gone = SecretReference::File("/nowhere/at/all".into()).reveal(&variables).unwrap_err();
        assert!(gone.to_string().contains("/nowhere/at/all"), "{gone}");
    }
}
