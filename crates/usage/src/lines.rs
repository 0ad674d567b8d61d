//! [`LineScanner`]: finds members of JSON texts that are a line each, as in NDJSON.

use memchr::{memchr, memrchr};

use super::{json::JsonScanner, needles::NeedleSearch};

/// Finds the members of a [`JsonScanner`] in lines: of each, the last line that has it counts. A
/// line that is no JSON does not spoil the next.
#[derive(Clone, Debug)]
pub struct LineScanner {
    json: JsonScanner,
    is_line_start: bool,
    needles: NeedleSearch,
}

impl LineScanner {
    /// A scanner at the beginning of a body. `json` has not got any bytes.
    pub fn new(json: JsonScanner) -> Self {
        Self { needles: NeedleSearch::new(json.paths()), json, is_line_start: true }
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
            if self.is_line_start {
                at = self.skip_lines(bytes, at);
            }
            let Some(end) = memchr(b'\n', &bytes[at..]) else {
                self.json.push(&bytes[at..]);
                self.is_line_start = at == bytes.len() && self.is_line_start;
                return;
            };
            self.json.push(&bytes[at..=at + end]);
            self.json.restart();
            self.is_line_start = true;
            at += end + 1;
        }
    }

    /// Skips whole lines that have none of the names. Returns where the next line begins.
    fn skip_lines(&mut self, bytes: &[u8], from: usize) -> usize {
        let first = self.needles.first(self.json.paths(), bytes, from);
        memrchr(b'\n', &bytes[from..first]).map_or(from, |end| from + end + 1)
    }
}
