//! Reads the files that an operator names: the configuration, secrets, certificates. Each read has
//! a deadline: opening a FIFO without a writer, or a file on a lost network file system, never
//! returns.

use std::{
    fs::{self, File, FileType, OpenOptions},
    io::{self, Read},
    os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt},
    path::Path,
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::Duration,
};

use rustix::fs::OFlags;

/// Maximum time to read a secret, or any file while the gateway starts.
pub const READ_TIMEOUT: Duration = Duration::from_secs(30);

/// Why a file cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The system's error.
    #[error("{}", describe(.0))]
    Io(#[from] io::Error),
    /// Only a regular file is accepted, and this is another kind, such as a FIFO.
    #[error("the file is {0}")]
    NotRegular(&'static str),
    /// The gateway has no configuration file.
    #[error("the gateway was started without a configuration file")]
    NoFile,
    /// An earlier read of the same file was abandoned and has not ended.
    #[error("an earlier read of the file has not ended")]
    Pending,
    /// The file is longer than this many bytes.
    #[error("the file is longer than {0} bytes")]
    TooLong(u64),
    /// The end of the file was not reached in time.
    #[error("the file could not be read within {0:?}")]
    Timeout(Duration),
}

impl FileError {
    /// What a fault of a configuration's `path` names as expected.
    pub fn expected_at(&self, path: &Path) -> &'static str {
        match self {
            Self::Io(error) if error.kind() == io::ErrorKind::NotFound && path.is_relative() => {
                "the path of a file; a relative one begins in the folder in which the gateway is started"
            }
            _ => self.expected(),
        }
    }

    /// True if there is no file of this name.
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Io(error) if error.kind() == io::ErrorKind::NotFound)
    }

    /// What a fault names as expected.
    pub fn expected(&self) -> &'static str {
        match self {
            Self::Io(error) if error.kind() == io::ErrorKind::NotFound => "the path of a file",
            Self::Io(_) => "a file that can be read",
            Self::NotRegular(_) => "a regular file",
            Self::NoFile => "a gateway that was started with `tidegate serve FILE`",
            Self::Pending => "a file system that replies",
            Self::TooLong(_) => "a shorter file",
            Self::Timeout(_) => "a file system that replies, or a pipe that is written and closed",
        }
    }

    /// Converts to the system's error type.
    pub fn into_io(self) -> io::Error {
        match self {
            Self::Io(error) => error,
            Self::NoFile | Self::NotRegular(_) => {
                io::Error::new(io::ErrorKind::InvalidInput, self.to_string())
            }
            Self::TooLong(_) => io::Error::new(io::ErrorKind::FileTooLarge, self.to_string()),
            Self::Pending | Self::Timeout(_) => {
                io::Error::new(io::ErrorKind::TimedOut, self.to_string())
            }
        }
    }
}

fn describe(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "the file does not exist".to_owned(),
        _ => format!("the file cannot be read: {error}"),
    }
}

/// What distinguishes two contents of a file, without reading them: a file of consumers may have
/// hundreds of MB.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct FileStamp {
    device: u64,
    inode: u64,
    size: u64,
    /// The time of the last change of the content, in seconds and ns.
    modified: (i64, i64),
    /// The time of the last change of the inode: a program may set the other one back.
    changed: (i64, i64),
}

impl FileStamp {
    /// The stamp of the file at `path`.
    ///
    /// # Errors
    ///
    /// The system's error.
    pub fn of(path: &Path) -> io::Result<Self> {
        let file = fs::metadata(path)?;
        Ok(Self {
            device: file.dev(),
            inode: file.ino(),
            size: file.size(),
            modified: (file.mtime(), file.mtime_nsec()),
            changed: (file.ctime(), file.ctime_nsec()),
        })
    }
}

/// Reads at most `max` bytes of a file of any kind. May block for ever; see [`read_within`].
///
/// # Errors
///
/// The system's error.
pub fn read(path: &Path, max: u64) -> Result<Vec<u8>, FileError> {
    Ok(read_open(File::open(path)?, max)?)
}

/// Reads a whole file of any kind, which may be a pipe, within [`READ_TIMEOUT`].
///
/// # Errors
///
/// The system's error, the file is longer than `max` bytes, or its end was not reached in time.
pub fn read_whole(path: &Path, max: u64) -> Result<Vec<u8>, FileError> {
    let file = path.to_owned();
    let bytes = read_within(READ_TIMEOUT, move || read(&file, max + 1))?;
    if bytes.len() as u64 > max { Err(FileError::TooLong(max)) } else { Ok(bytes) }
}

/// Reads at most `max` bytes of a regular file.
///
/// # Errors
///
/// The system's error, or the file is not a regular one: a FIFO or a device can be read only once,
/// or never ends.
pub fn read_regular(path: &Path, max: u64) -> Result<Vec<u8>, FileError> {
    // Checked before opening, because opening a device may have effects; and again afterwards,
    // because another file may have replaced it. Opening a FIFO without `NONBLOCK` waits for a
    // writer.
    ensure_regular(fs::metadata(path)?.file_type())?;
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    ensure_regular(file.metadata()?.file_type())?;
    Ok(read_open(file, max)?)
}

/// Calls `read` on a new thread and returns its result. After `timeout` the thread is abandoned: a
/// system call that hangs cannot be ended.
///
/// # Errors
///
/// The errors of `read`, [`FileError::Timeout`], or no thread can be started.
pub fn read_within<T: Send + 'static>(
    timeout: Duration,
    read: impl FnOnce() -> Result<T, FileError> + Send + 'static,
) -> Result<T, FileError> {
    let (sender, result) = mpsc::sync_channel(1);
    let send = move || {
        // The receiver is gone after a timeout.
        let _ = sender.send(read());
    };
    thread::Builder::new().name("read-file".to_owned()).spawn(send)?;
    result.recv_timeout(timeout).unwrap_or_else(|error| match error {
        RecvTimeoutError::Timeout => Err(FileError::Timeout(timeout)),
        RecvTimeoutError::Disconnected => Err(io::Error::other("reading it panicked").into()),
    })
}

fn read_open(file: File, max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(max).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn ensure_regular(kind: FileType) -> Result<(), FileError> {
    let kind = match kind {
        _ if kind.is_file() => return Ok(()),
        _ if kind.is_dir() => "a directory",
        _ if kind.is_fifo() => "a FIFO",
        _ if kind.is_socket() => "a socket",
        _ => "a device",
    };
    Err(FileError::NotRegular(kind))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fifo(folder: &Path) -> std::path::PathBuf {
        let path = folder.join("fifo");
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        path
    }

    #[test]
    fn only_a_regular_file_is_read_where_one_is_required() {
        let folder = tempfile::tempdir().unwrap();
        let message = |path: &Path| {
            let error = read_regular(path, 10).unwrap_err();
            format!("{error}, expected {}", error.expected())
        };
        assert_eq!(message(&fifo(folder.path())), "the file is a FIFO, expected a regular file");
        assert_eq!(message(folder.path()), "the file is a directory, expected a regular file");
        assert_eq!(message("/dev/zero".as_ref()), "the file is a device, expected a regular file");
        let missing = "the file does not exist, expected the path of a file";
        assert_eq!(message("/nowhere/at/all".as_ref()), missing);
        let error = read_regular("nowhere".as_ref(), 10).unwrap_err();
        assert!(error.expected_at("nowhere".as_ref()).contains("a relative one begins in"));
        assert_eq!(error.expected_at("/nowhere".as_ref()), error.expected());
        let file = folder.path().join("file");
        fs::write(&file, "0123456789abc").unwrap();
        assert_eq!(read_regular(&file, 10).unwrap(), b"0123456789");
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&file, &link).unwrap();
        assert_eq!(read_regular(&link, 20).unwrap(), b"0123456789abc");
    }

    #[test]
    fn a_read_that_never_ends_is_left_behind_at_its_deadline() {
        let folder = tempfile::tempdir().unwrap();
        let path = fifo(folder.path());
        let timeout = Duration::from_millis(20);
        let hung = path.clone();
        let error = read_within(timeout, move || read(&hung, 10)).unwrap_err();
        assert!(matches!(error, FileError::Timeout(_)), "{error}");
        assert_eq!(error.to_string(), "the file could not be read within 20ms");
        // The abandoned thread ends once the FIFO has a writer.
        fs::write(&path, "late").unwrap();
        assert_eq!(read_within(READ_TIMEOUT, || Ok(5)).unwrap(), 5);
    }
}
