//! The lines of a log: of a file or a pipe, plain or gzip, without one allocation a line.

use std::io::{self, BufReader, Cursor, Read};

use flate2::bufread::MultiGzDecoder;

use super::line::MAX_LINE;

/// More than the longest line, so that what is left of one has room beside the next read.
const BUFFER: usize = 4 * MAX_LINE;

/// The first two bytes of gzip.
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// What a reader of lines finds.
#[derive(Debug, Eq, PartialEq)]
pub enum Piece<'b> {
    /// A line, without its end.
    Line(&'b [u8]),
    /// A line that was passed over: it is longer than [`MAX_LINE`].
    TooLong,
}

/// Cuts what a reader gives into lines.
pub struct Lines<R> {
    reader: R,
    buffer: Box<[u8]>,
    /// What was read and not given yet.
    held: std::ops::Range<usize>,
    /// How much of it is known to hold no line's end.
    searched: usize,
    /// Whether what comes up to the next line's end belongs to a line that is too long.
    passing: bool,
    ended: bool,
}

/// Opens a log: unpacks it where it begins as gzip does, whatever it is called.
pub fn open<'r>(mut reader: impl Read + 'r) -> io::Result<Lines<Box<dyn Read + 'r>>> {
    let mut first = [0; GZIP.len()];
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
    Ok(Lines::new(if first[..count] == GZIP {
        Box::new(MultiGzDecoder::new(BufReader::with_capacity(BUFFER, whole)))
    } else {
        Box::new(whole)
    }))
}

impl<R: Read> Lines<R> {
    /// Cuts what `reader` gives.
    pub fn new(reader: R) -> Self {
        let buffer = vec![0; BUFFER].into_boxed_slice();
        Self { reader, buffer, held: 0..0, searched: 0, passing: false, ended: false }
    }

    /// The next line; `None` at the end.
    pub fn next_line(&mut self) -> io::Result<Option<Piece<'_>>> {
        let (line, next) = loop {
            let held = &self.buffer[self.held.clone()];
            if let Some(end) = memchr::memchr(b'\n', &held[self.searched..]) {
                let end = self.held.start + self.searched + end;
                break (self.held.start..end, end + 1);
            }
            self.searched = held.len();
            if held.len() > MAX_LINE + 1 {
                self.passing = true;
                (self.held, self.searched) = (0..0, 0);
            }
            if self.ended {
                if self.held.is_empty() && !self.passing {
                    return Ok(None);
                }
                break (self.held.clone(), self.held.end);
            }
            self.fill()?;
        };
        (self.held.start, self.searched) = (next, 0);
        let line = &self.buffer[line];
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let too_long = std::mem::take(&mut self.passing) || line.len() > MAX_LINE;
        Ok(Some(if too_long { Piece::TooLong } else { Piece::Line(line) }))
    }

    /// Reads more behind what is held, which is moved to the front where there is no room.
    fn fill(&mut self) -> io::Result<()> {
        if self.held.end == self.buffer.len() || self.held.is_empty() {
            self.buffer.copy_within(self.held.clone(), 0);
            self.held = 0..self.held.len();
        }
        loop {
            match self.reader.read(&mut self.buffer[self.held.end..]) {
                Ok(count) => {
                    self.ended = count == 0;
                    self.held.end += count;
                    return Ok(());
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}
