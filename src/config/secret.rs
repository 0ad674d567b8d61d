use std::{fmt, fs, io, path::PathBuf};

use super::text::{Text, text_value};

/// The longest secret that is read from a file, in bytes.
const MAX_SECRET: u64 = 4_096;

/// How a variable of the environment is read: only the binary may do it, so it hands this down.
pub type Variables<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Where a secret is: never the secret itself.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Secret {
    /// In a variable of the environment.
    Variable(String),
    /// In a file, whole but for the end of its last line.
    File(PathBuf),
}

/// A secret that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// The variable is not there, or not text.
    #[error("the variable {0} is not set, or is not text")]
    Variable(String),
    /// The file cannot be read, is not text or too long.
    #[error("cannot read the secret in {path}: {error}", path = .path.display())]
    File {
        /// The file as configured.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// It is there, and nothing but white space is in it.
    #[error("the secret in {0} is empty, or nothing but white space")]
    Empty(String),
    /// It is there, and can be guessed.
    #[error("the secret in {place} has {len} bytes, fewer than {min}")]
    Short {
        /// Where it is.
        place: String,
        /// Its length in bytes.
        len: usize,
        /// The least.
        min: usize,
    },
}

impl SecretError {
    /// Whether the secret is there and no gateway would take it, wherever it runs.
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
    /// Reads it: a file now, a variable by `variables`.
    pub fn reveal(&self, variables: Variables<'_>) -> Result<Box<str>, SecretError> {
        let text = match self {
            Self::Variable(name) => {
                variables(name).ok_or_else(|| SecretError::Variable(name.clone()))?
            }
            Self::File(path) => {
                read(path).map_err(|error| SecretError::File { path: path.clone(), error })?
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
}

impl Secret {
    /// The same of one that must have so many bytes, white space before and behind it not counted.
    pub fn reveal_at_least(
        &self,
        min: usize,
        variables: Variables<'_>,
    ) -> Result<Box<str>, SecretError> {
        let text = self.reveal(variables)?;
        let (place, len) = (self.to_string(), text.trim().len());
        if len < min { Err(SecretError::Short { place, len, min }) } else { Ok(text) }
    }
}

fn read(path: &PathBuf) -> io::Result<String> {
    use io::Read as _;
    let (mut text, file) = (String::new(), fs::File::open(path)?);
    if file.take(MAX_SECRET + 1).read_to_string(&mut text)? as u64 > MAX_SECRET {
        let what = format!("longer than {MAX_SECRET} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, what));
    }
    Ok(text)
}

impl Text for Secret {
    const EXPECTED: &'static str = "env:NAME or file:PATH, never the secret itself";
    const PATTERN: &'static str = "^(env:[A-Za-z_][A-Za-z0-9_]*|file:.+)$";
    const SECRET: bool = true;

    fn read(text: &str) -> Option<Self> {
        if let Some(path) = text.strip_prefix("file:") {
            return (!path.is_empty()).then(|| Self::File(path.into()));
        }
        let name = text.strip_prefix("env:")?;
        let fits = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
        let first = name.bytes().next()?;
        (name.bytes().all(fits) && !first.is_ascii_digit()).then(|| Self::Variable(name.to_owned()))
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

text_value!(Secret);

#[cfg(test)]
mod tests {
    use super::{super::text, *};

    #[test]
    fn a_place_is_read_and_a_secret_is_not() {
        for good in ["env:REDIS_PASSWORD", "env:_1", "file:/run/secrets/redis", "file:here"] {
            assert_eq!(text::read::<Secret>(good).unwrap().to_string(), good);
        }
        for bad in ["hunter2", "env:", "env:1A", "env:A B", "file:", "ENV:A", ""] {
            assert!(text::read::<Secret>(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn a_secret_is_read_without_the_end_of_its_line() {
        let variables = |name: &str| (name == "HERE").then(|| "hush\n".to_owned());
        let of = |name: &str| Secret::Variable(name.to_owned()).reveal(&variables);
        assert_eq!(&*of("HERE").unwrap(), "hush");
        assert!(of("GONE").unwrap_err().to_string().contains("GONE"));

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
