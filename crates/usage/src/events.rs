//! [`EventScanner`]: finds members in the `data` of server-sent events (WHATWG HTML, 9.2).

use memchr::{memchr2, memmem::rfind};

use super::{json::JsonScanner, needles::NeedleSearch};

/// The field whose lines are read.
const FIELD: &[u8] = b"data";
/// The mark that a stream may begin with.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Finds the members of a [`JsonScanner`] in the `data` of server-sent events: of each, the last
/// event that has it counts.
#[derive(Clone, Debug)]
pub struct EventScanner {
    json: JsonScanner,
    state: LineState,
    /// True if the last byte was a carriage return: a line feed after it belongs to it.
    after_return: bool,
    /// True if a line of the current event has ended.
    has_line: bool,
    /// Matched bytes of the byte order mark; its length once a line has begun.
    mark: usize,
    needles: NeedleSearch,
}

/// What the next byte belongs to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum LineState {
    /// The first bytes of a line, of which this many are those of `data`.
    Field(usize),
    /// The byte after the colon of `data:`, if it is a space.
    Space,
    /// The value of `data:`.
    Data,
    /// A line with another field.
    Other,
}

impl EventScanner {
    /// A scanner at the beginning of a stream. `json` has not got any bytes.
    pub fn new(json: JsonScanner) -> Self {
        Self {
            needles: NeedleSearch::new(json.paths()),
            json,
            state: LineState::Field(0),
            after_return: false,
            has_line: false,
            mark: 0,
        }
    }

    /// What was found so far.
    pub fn json(&self) -> &JsonScanner {
        &self.json
    }

    /// Looks at the next bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.needles.begin_piece();
        let mut at = 0;
        while at < bytes.len() {
            let is_event_start = self.state == LineState::Field(0) && !self.has_line;
            if is_event_start {
                at = self.skip_events(bytes, at);
                if at == bytes.len() {
                    return;
                }
            }
            at += self.step(&bytes[at..]);
        }
    }

    /// Skips whole events that have none of the members: their text has none of the names. Returns
    /// where the next event begins.
    fn skip_events(&mut self, bytes: &[u8], from: usize) -> usize {
        let first = self.needles.first(self.json.paths(), bytes, from);
        let Some(end) = rfind(&bytes[from..first], b"\n\n") else { return from };
        self.mark = BYTE_ORDER_MARK.len();
        self.after_return = false;
        from + end + 2
    }

    /// Handles at least the first byte. Returns how many.
    fn step(&mut self, bytes: &[u8]) -> usize {
        let byte = bytes[0];
        if std::mem::take(&mut self.after_return) && byte == b'\n' {
            return 1;
        }
        if self.mark < BYTE_ORDER_MARK.len() {
            if byte == BYTE_ORDER_MARK[self.mark] {
                self.mark += 1;
                return 1;
            }
            self.mark = BYTE_ORDER_MARK.len();
        }
        match self.state {
            LineState::Data | LineState::Other => {
                let end = memchr2(b'\n', b'\r', bytes).unwrap_or(bytes.len());
                if self.state == LineState::Data {
                    self.json.push(&bytes[..end]);
                }
                if end < bytes.len() {
                    self.end_line(bytes[end]);
                }
                (end + 1).min(bytes.len())
            }
            _ if byte == b'\n' || byte == b'\r' => {
                self.end_line(byte);
                1
            }
            LineState::Space => {
                self.state = LineState::Data;
                usize::from(byte == b' ')
            }
            LineState::Field(matched) => {
                self.state = match FIELD.get(matched) {
                    Some(wanted) if *wanted == byte => LineState::Field(matched + 1),
                    None if byte == b':' => LineState::Space,
                    _ => LineState::Other,
                };
                1
            }
        }
    }

    fn end_line(&mut self, byte: u8) {
        self.after_return = byte == b'\r';
        if self.state == LineState::Field(0) {
            self.json.restart();
            self.has_line = false;
        } else {
            // Several lines of data are one text, with line feeds between them.
            if matches!(self.state, LineState::Data | LineState::Space) {
                self.json.push(b"\n");
            }
            self.has_line = true;
        }
        self.state = LineState::Field(0);
    }
}
