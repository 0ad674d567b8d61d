//! Where a log's thread writes to.

use std::{
    fs::{File, OpenOptions},
    io::{self, StderrLock, Write},
    os::{
        fd::AsFd,
        unix::fs::{FileTypeExt, OpenOptionsExt},
    },
    path::{Path, PathBuf},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::OFlags,
};

/// A sink that is not ready is asked again after so long, in ns.
const WAIT: i64 = 100_000_000;

/// Where a log goes.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Destination<'a> {
    /// Standard error.
    Stderr,
    /// Standard output.
    Stdout,
    /// The end of a file, or a FIFO.
    File(&'a Path),
}

/// What a log's thread writes to.
pub(super) trait Sink: Send {
    /// Writes some of `bytes`.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize>;

    /// Waits a while after a write that would block.
    fn wait(&self) {}

    /// Opens anew what was opened by its name. On an error the old one stays.
    fn reopen(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// Keeps others of the process from writing to the same stream.
    fn lock(&self) -> Option<StderrLock<'static>> {
        None
    }
}

/// An open file or stream.
pub(super) struct FileSink {
    file: File,
    /// Opened anew by this name; none: a stream that was handed down.
    path: Option<PathBuf>,
    is_stderr: bool,
}

impl FileSink {
    /// Opens it. Never waits for the reader of a FIFO.
    pub(super) fn open(destination: &Destination<'_>) -> io::Result<Self> {
        // Unbuffered: a buffer of lines is one write.
        let (file, path) = match destination {
            Destination::Stderr => (io::stderr().as_fd().try_clone_to_owned()?.into(), None),
            Destination::Stdout => (io::stdout().as_fd().try_clone_to_owned()?.into(), None),
            Destination::File(path) => (open(path)?, Some(path.to_path_buf())),
        };
        Ok(Self { file, path, is_stderr: *destination == Destination::Stderr })
    }
}

impl Sink for FileSink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn wait(&self) {
        let timeout = Timespec { tv_sec: 0, tv_nsec: WAIT };
        // Ready or not: the next write shows it.
        let _ = poll(&mut [PollFd::new(&self.file, PollFlags::OUT)], Some(&timeout));
    }

    fn reopen(&mut self) -> io::Result<()> {
        if let Some(path) = &self.path {
            self.file = open(path)?;
        }
        Ok(())
    }

    fn lock(&self) -> Option<StderrLock<'static>> {
        self.is_stderr.then(|| io::stderr().lock())
    }
}

/// Opens a file for appending. A FIFO is opened for reading, too: it needs no reader then, neither now
/// nor while its reader restarts.
fn open(path: &Path) -> io::Result<File> {
    let is_fifo = path.metadata().is_ok_and(|found| found.file_type().is_fifo());
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    OpenOptions::new().create(true).append(true).read(is_fifo).custom_flags(flags).open(path)
}
