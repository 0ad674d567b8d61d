//! Secrets by reference: the file names where a secret is, never the secret itself.

use std::{fmt, fs, io, path::PathBuf};

use super::scalar::{ScalarValue, impl_scalar};

/// The longest secret that is read from a file, in bytes.
const MAX_SECRET: u64 = 4_096;

/// Looks up an environment variable. Only the binary reads the environment; it passes this function down.
pub type EnvLookup<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Where a secret is read from.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Secret {
    /// An environment variable, by name.
    Variable(String),
    /// A file; its content without a final line break.
    File(PathBuf),
}

/// Why a secret cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// The variable is not set, or not UTF-8.
    #[error("the environment variable {0} is not set, or is not UTF-8")]
    Variable(String),
    /// The file cannot be read, is not UTF-8 or is too long.
    #[error("cannot read the secret in {path}: {error}", path = .path.display())]
    File {
        /// The file as configured.
        path: PathBuf,
        /// The cause.
        error: io::Error,
    },
    /// The secret is empty, or only white space.
    #[error("the secret in {0} is empty or only white space")]
    Empty(String),
    /// The secret is too short to resist guessing.
    #[error("the secret in {reference} has {len} bytes, fewer than {min}")]
    Short {
        /// Where it is, as configured.
        reference: String,
        /// Its length in bytes.
        len: usize,
        /// The required length in bytes.
        min: usize,
    },
}

impl SecretError {
    /// True if the secret is invalid on every machine; false if it is only missing on this one.
    pub fn is_fault(&self) -> bool {
        match self {
            Self::Variable(_) => false,
            Self::File { error, .. } => {
                matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::FileTooLarge)
            }
            Self::Empty(_) | Self::Short { .. } => true,
        }
    }
}

impl Secret {
    /// Reads the secret from its file, or through `env`.
    ///
    /// # Errors
    ///
    /// The secret is missing, unreadable, not UTF-8, too long, empty or only white space.
    pub fn reveal(&self, env: EnvLookup<'_>) -> Result<Box<str>, SecretError> {
        let text = match self {
            Self::Variable(name) => env(name).ok_or_else(|| SecretError::Variable(name.clone()))?,
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

    /// As [`Secret::reveal`], for a secret of at least `min` bytes, not counting surrounding white space.
    ///
    /// # Errors
    ///
    /// Those of [`Secret::reveal`], and [`SecretError::Short`].
    pub fn reveal_at_least(&self, min: usize, env: EnvLookup<'_>) -> Result<Box<str>, SecretError> {
        let text = self.reveal(env)?;
        let (reference, len) = (self.to_string(), text.trim().len());
        if len < min { Err(SecretError::Short { reference, len, min }) } else { Ok(text) }
    }
}

fn read_file(path: &PathBuf) -> io::Result<String> {
    use io::Read as _;
    let (mut text, file) = (String::new(), fs::File::open(path)?);
    if file.take(MAX_SECRET + 1).read_to_string(&mut text)? as u64 > MAX_SECRET {
        let what = format!("longer than {MAX_SECRET} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, what));
    }
    Ok(text)
}

impl ScalarValue for Secret {
    const EXPECTED: &'static str = "env:NAME or file:PATH, never the secret itself";
    const PATTERN: &'static str = "^(env:[A-Za-z_][A-Za-z0-9_]*|file:.+)$";
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

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Variable(name) => write!(f, "env:{name}"),
            Self::File(path) => write!(f, "file:{}", path.display()),
        }
    }
}

impl_scalar!(Secret);

#[cfg(test)]
mod tests {
    use super::{super::scalar, *};

    #[test]
    fn references_are_parsed_and_literal_secrets_are_refused() {
        for good in ["env:REDIS_PASSWORD", "env:_1", "file:/run/secrets/redis", "file:here"] {
            assert_eq!(scalar::parse::<Secret>(good).unwrap().to_string(), good);
        }
        for bad in ["hunter2", "env:", "env:1A", "env:A B", "file:", "ENV:A", ""] {
            assert!(scalar::parse::<Secret>(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn the_final_line_break_is_not_part_of_a_secret() {
        let variables = |name: &str| (name == "HERE").then(|| "hush\n".to_owned());
        let reveal = |name: &str| Secret::Variable(name.to_owned()).reveal(&variables);
        assert_eq!(&*reveal("HERE").unwrap(), "hush");
        assert!(reveal("GONE").unwrap_err().to_string().contains("GONE"));

        let file = tempfile::NamedTempFile::new().unwrap();
        let secret = Secret::File(file.path().to_owned());
        assert!(matches!(secret.reveal(&variables), Err(SecretError::Empty(_))));
        for (content, expected) in [("a b\r\n", "a b"), (" x\n\n", " x\n"), ("p", "p")] {
            fs::write(file.path(), content).unwrap();
            assert_eq!(&*secret.reveal(&variables).unwrap(), expected);
        }
        fs::write(file.path(), "x".repeat(5_000)).unwrap();
        assert!(secret.reveal(&variables).is_err());
        fs::write(file.path(), "0123456789abcde\n").unwrap();
        let short = secret.reveal_at_least(16, &variables).unwrap_err().to_string();
        assert!(
            short.contains("has 15 bytes, fewer than 16") && !short.contains("abcde"),
            "{short}"
        );
        assert!(secret.reveal_at_least(15, &variables).is_ok());
        for unfit in [&[b' '; 20][..], &[0xff; 20], &[b'x'; 5_000]] {
            fs::write(file.path(), unfit).unwrap();
            assert!(secret.reveal_at_least(16, &variables).is_err_and(|error| error.is_fault()));
        }
        let gone = Secret::File("/nowhere/at/all".into()).reveal(&variables).unwrap_err();
        assert!(gone.to_string().contains("/nowhere/at/all"), "{gone}");
    }
}
