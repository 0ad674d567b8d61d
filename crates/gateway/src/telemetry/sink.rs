//! The sinks of logs: files, FIFOs and standard streams.

use std::{
    fs::{File, OpenOptions},
    io::{self, IsTerminal as _, StderrLock, Write},
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

/// How long a log's thread waits for a sink that is not ready before it tries again, in ns.
const READY_TIMEOUT_NS: i64 = 100_000_000;

/// The destination of a log.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Destination<'a> {
    /// Standard error.
    Stderr,
    /// Standard output.
    Stdout,
    /// A file, which is appended to, or a FIFO.
    File(&'a Path),
}

/// How soon lines are passed to the thread of the access log.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum LinePace {
    /// Many at a time.
    Buffered,
    /// Each at once: a person watches.
    AtOnce,
}

/// The interface of a log's thread to its destination.
pub(super) trait Sink: Send {
    /// How soon lines shall arrive.
    fn pace(&self) -> LinePace {
        LinePace::Buffered
    }

    /// Writes some of `bytes`.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize>;

    /// Waits for readiness, for a bounded time, after a write that would block.
    fn wait(&self) {}

    /// Reopens a file by its path. On an error the old file stays open.
    fn reopen(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// Locks the stream against other writers in this process.
    fn lock(&self) -> Option<StderrLock<'static>> {
        None
    }
}

/// An open file or stream.
pub(super) struct FileSink {
    file: File,
    /// The path to reopen; `None` for an inherited stream.
    path: Option<PathBuf>,
    is_stderr: bool,
}

impl FileSink {
    /// Opens the destination. Never waits for the reader of a FIFO.
    pub(super) fn open(destination: &Destination<'_>) -> io::Result<Self> {
        // Unbuffered: the access log's lines already arrive in buffers.
        let (file, path) = match destination {
            Destination::Stderr => (io::stderr().as_fd().try_clone_to_owned()?.into(), None),
            Destination::Stdout => (io::stdout().as_fd().try_clone_to_owned()?.into(), None),
            Destination::File(path) => (open(path)?, Some(path.to_path_buf())),
        };
        Ok(Self { file, path, is_stderr: *destination == Destination::Stderr })
    }
}

impl Sink for FileSink {
    fn pace(&self) -> LinePace {
        if self.file.is_terminal() { LinePace::AtOnce } else { LinePace::Buffered }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn wait(&self) {
        let timeout = Timespec { tv_sec: 0, tv_nsec: READY_TIMEOUT_NS };
        // The result is not needed: the next write shows whether the sink is ready.
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

/// Opens a file for appending. A FIFO is also opened for reading: so it can be opened and written
/// while its reader restarts.
fn open(path: &Path) -> io::Result<File> {
    let is_fifo = path.metadata().is_ok_and(|found| found.file_type().is_fifo());
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    OpenOptions::new().create(true).append(true).read(is_fifo).custom_flags(flags).open(path)
}
