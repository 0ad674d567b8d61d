//! Reads the lines of a log from a file or a pipe, plain or gzip, without an allocation per line.

use std::io::{self, BufReader, Cursor, Read};

use flate2::bufread::MultiGzDecoder;

use super::line::MAX_LINE;

/// Size of the buffer, in bytes: several times the longest line, so that a partial line and the
/// next read both fit.
const BUFFER_SIZE: usize = 4 * MAX_LINE;

/// The magic number of gzip (RFC 1952, 2.3.1).
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// A line as read.
#[derive(Debug, Eq, PartialEq)]
pub enum RawLine<'b> {
    /// A line without its line break.
    Line(&'b [u8]),
    /// A line longer than [`MAX_LINE`], which was skipped.
    TooLong,
}

/// The byte order mark, which some programs write before the first line.
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// Splits the bytes of a reader into lines.
pub struct LineReader<R> {
    reader: R,
    buffer: Box<[u8]>,
    /// The range of the buffer that was read but not returned yet.
    unread: std::ops::Range<usize>,
    /// Length of the prefix of `unread` that contains no line break.
    searched: usize,
    /// True while the rest of an overlong line is skipped.
    is_skipping: bool,
    is_at_end: bool,
    /// True once the first line was read.
    has_begun: bool,
}

/// Opens a log. Decompresses it if it starts with the magic number of gzip, whatever its name.
///
/// # Errors
///
/// The first bytes cannot be read.
pub fn open<'r>(mut reader: impl Read + 'r) -> io::Result<LineReader<Box<dyn Read + 'r>>> {
    let mut first = [0; GZIP_MAGIC.len()];
    let mut count = 0;
    while count < first.len() {
        match reader.read(&mut first[count..]) {
            Ok(0) => break,
            Ok(more) => count += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    let whole = Cursor::new(first).take(count as u64).chain(reader);
    Ok(LineReader::new(if first[..count] == GZIP_MAGIC {
        Box::new(MultiGzDecoder::new(BufReader::with_capacity(BUFFER_SIZE, whole)))
    } else {
        Box::new(whole)
    }))
}

impl<R: Read> LineReader<R> {
    /// A reader of the lines of `reader`.
    pub fn new(reader: R) -> Self {
        let buffer = vec![0; BUFFER_SIZE].into_boxed_slice();
        Self {
            reader,
            buffer,
            unread: 0..0,
            searched: 0,
            is_skipping: false,
            is_at_end: false,
            has_begun: false,
        }
    }

    /// The next line; `None` at the end.
    ///
    /// # Errors
    ///
    /// The log cannot be read, or is not valid gzip.
    pub fn next_line(&mut self) -> io::Result<Option<RawLine<'_>>> {
        let (line, next) = loop {
            let unread = &self.buffer[self.unread.clone()];
            if let Some(end) = memchr::memchr(b'\n', &unread[self.searched..]) {
                let end = self.unread.start + self.searched + end;
                break (self.unread.start..end, end + 1);
            }
            self.searched = unread.len();
            if unread.len() > MAX_LINE + 1 {
                self.is_skipping = true;
                (self.unread, self.searched) = (0..0, 0);
            }
            if self.is_at_end {
                if self.unread.is_empty() && !self.is_skipping {
                    return Ok(None);
                }
                break (self.unread.clone(), self.unread.end);
            }
            self.fill()?;
        };
        (self.unread.start, self.searched) = (next, 0);
        let line = &self.buffer[line];
        let has_begun = std::mem::replace(&mut self.has_begun, true);
        let line =
            if has_begun { line } else { line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(line) };
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let too_long = std::mem::take(&mut self.is_skipping) || line.len() > MAX_LINE;
        Ok(Some(if too_long { RawLine::TooLong } else { RawLine::Line(line) }))
    }

    /// Reads more bytes after the unread ones, and moves these to the front if there is no room.
    fn fill(&mut self) -> io::Result<()> {
        if self.unread.end == self.buffer.len() || self.unread.is_empty() {
            self.buffer.copy_within(self.unread.clone(), 0);
            self.unread = 0..self.unread.len();
        }
        loop {
            match self.reader.read(&mut self.buffer[self.unread.end..]) {
                Ok(count) => {
                    self.is_at_end = count == 0;
                    self.unread.end += count;
                    return Ok(());
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}
