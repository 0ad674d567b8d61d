//! [`JsonScanner`]: finds members of a JSON text that arrives in pieces.

use std::sync::Arc;

use memchr::memchr2;

use super::{
    members::{FoundMember, MemberKind, Members},
    number::{NumberReader, NumberStep, Quantity},
    path::{MAX_DEPTH, MAX_NAME, PathSet},
};

/// Longest raw text of a name that can match: each character may be spelled `\uXXXX`.
const MAX_RAW_NAME: usize = 6 * MAX_NAME;

/// Bytes of a text that are looked at one by one.
const SHORT_TEXT: usize = 16;

/// Finds the members at a few paths of a JSON text, or of several texts in a row, of which the last
/// one that has a member counts.
///
/// It does not check the whole syntax: in values that no path leads to, only strings and brackets
/// matter, and with [`Grammar::Strict`] that nothing else can be taken for one. Text that is not
/// JSON ends the scan; what was found before stays.
#[derive(Clone, Debug)]
pub struct JsonScanner {
    paths: Arc<PathSet>,
    grammar: Grammar,
    members: Members,
    state: ScanState,
    /// The open objects and arrays that paths lead into, the innermost last.
    levels: [Level; MAX_DEPTH],
    depth: usize,
    /// The paths that lead to the next value, or into it.
    target: u32,
    /// Open brackets of the value that is skipped.
    skipped: u64,
    /// The raw text of a name, if it arrives in pieces.
    name: Vec<u8>,
    number: NumberReader,
    /// The offset of the first byte of the value that is read.
    start: u64,
    /// The number of bytes before the current piece.
    offset: u64,
}

/// Which texts a scanner accepts.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Grammar {
    /// One text, without anything that lenient parsers add to JSON, such as comments: its structure
    /// must be the same to every parser.
    Strict,
    /// Several texts in a row, with `NaN` and `Infinity`, which Python writes.
    Lenient,
}

/// An open object or array.
#[derive(Clone, Copy, Debug, Default)]
struct Level {
    is_array: bool,
    /// The paths that lead into it.
    mask: u32,
    /// The paths whose next member has occurred in it.
    seen: u32,
    /// The index of the current element of an array.
    element: u32,
}

/// What the next byte belongs to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum ScanState {
    /// The space before a text, or a text.
    Root,
    /// The space after the only text.
    End,
    /// The space before a value.
    Value,
    /// The space before the first value of an array, or its end.
    ValueOrEnd,
    /// The space before a name, or the end of an object.
    NameOrEnd,
    Name,
    /// A name after a backslash.
    NameEscape,
    Colon,
    /// A string that is a value.
    Text,
    TextEscape,
    Number,
    Literal,
    /// The space after a value.
    AfterValue,
    /// A number or literal that no path leads to.
    SkipScalar,
    /// A value that no path leads into.
    Skip,
    SkipText,
    SkipEscape,
    /// It is no JSON.
    Broken,
}

/// The meaning of a byte in a value that is skipped: 0 for the bytes of numbers, literals and space
/// between values, 4 for bytes that JSON has only in strings.
const SKIP_CLASS: [u8; 256] = {
    let mut class = [4; 256];
    let others = b"0123456789+-.eEtrufalsn,: \t\n\r";
    let mut at = 0;
    while at < others.len() {
        class[others[at] as usize] = 0;
        at += 1;
    }
    class[b'"' as usize] = 1;
    class[b'{' as usize] = 2;
    class[b'[' as usize] = 2;
    class[b'}' as usize] = 3;
    class[b']' as usize] = 3;
    class
};

impl JsonScanner {
    /// A scanner at the beginning of a text.
    pub fn new(paths: Arc<PathSet>, grammar: Grammar) -> Self {
        Self {
            grammar,
            members: Members::new(paths.paths().len()),
            paths,
            state: ScanState::Root,
            levels: [Level::default(); MAX_DEPTH],
            depth: 0,
            target: 0,
            skipped: 0,
            name: Vec::new(),
            number: NumberReader::default(),
            start: 0,
            offset: 0,
        }
    }

    /// The paths that it looks for.
    pub fn paths(&self) -> &Arc<PathSet> {
        &self.paths
    }

    /// Looks at the next bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        let mut at = 0;
        while at < bytes.len() && self.state != ScanState::Broken {
            at += self.step(bytes, at);
        }
        self.offset += bytes.len() as u64;
    }

    /// Ends the current text, complete or not, and begins the next one.
    pub fn restart(&mut self) {
        self.members.commit();
        (self.state, self.depth, self.skipped) = (ScanState::Root, 0, 0);
        self.name.clear();
    }

    /// The member at the path with this index, in the last text that has it.
    pub fn member(&self, path: usize) -> Option<FoundMember> {
        self.members.get(path)
    }

    /// The number at the path with this index, in the last text that has a number there.
    pub fn quantity(&self, path: usize) -> Option<Quantity> {
        self.member(path)?.quantity()
    }

    /// The paths, as bits, of which an object had a member twice.
    pub fn repeated(&self) -> u32 {
        self.members.repeated
    }

    /// The paths, as bits, of which a member was there under a name that differs in capitals alone:
    /// some parsers read it as the same name.
    pub fn misspelt(&self) -> u32 {
        self.members.misspelt
    }

    /// True if what has arrived is no JSON.
    pub fn is_broken(&self) -> bool {
        self.state == ScanState::Broken
    }

    /// True once the only text has ended.
    pub fn has_ended(&self) -> bool {
        self.state == ScanState::End
    }

    /// Handles the bytes from `at`, at least one. Returns how many.
    fn step(&mut self, bytes: &[u8], at: usize) -> usize {
        let rest = &bytes[at..];
        match self.state {
            ScanState::Skip => self.skip(rest),
            ScanState::SkipScalar => self.skip_scalar(rest),
            ScanState::Text | ScanState::SkipText => self.skip_text(rest),
            ScanState::Name => self.read_name(rest),
            ScanState::TextEscape => self.end_escape(rest[0], ScanState::Text),
            ScanState::SkipEscape => self.end_escape(rest[0], ScanState::SkipText),
            ScanState::NameEscape => {
                self.keep_name(&rest[..1]);
                self.end_escape(rest[0], ScanState::Name)
            }
            ScanState::Number => self.read_number(rest[0]),
            ScanState::Literal => self.read_literal(rest[0]),
            _ => {
                if !matches!(rest[0], b' ' | b'\t' | b'\n' | b'\r') {
                    self.read_mark(rest[0], self.offset + at as u64);
                }
                1
            }
        }
    }

    fn enter(&mut self, state: ScanState) -> usize {
        self.state = state;
        1
    }

    /// Handles the byte after a backslash.
    fn end_escape(&mut self, byte: u8, next: ScanState) -> usize {
        self.enter(if self.is_escape(byte) { next } else { ScanState::Broken })
    }

    /// True if `byte` may follow a backslash. Lenient parsers read other ones as they like: `mode\l`
    /// is `model` in JSON5.
    fn is_escape(&self, byte: u8) -> bool {
        self.grammar == Grammar::Lenient || b"\"\\/bfnrtu".contains(&byte)
    }

    /// Handles a byte between values and names.
    fn read_mark(&mut self, byte: u8, offset: u64) {
        match (self.state, byte) {
            (ScanState::Root, _) => {
                self.target = self.paths.all();
                self.begin_value(byte, offset);
            }
            (ScanState::ValueOrEnd, b']') | (ScanState::NameOrEnd, b'}') => self.close(),
            (ScanState::Value | ScanState::ValueOrEnd, _) => self.begin_value(byte, offset),
            (ScanState::NameOrEnd, b'"') => {
                self.name.clear();
                self.state = ScanState::Name;
            }
            (ScanState::Colon, b':') => self.state = ScanState::Value,
            (ScanState::AfterValue, b',') => self.next_member(),
            (ScanState::AfterValue, b'}' | b']') => {
                let is_array = self.levels[self.depth - 1].is_array;
                if is_array == (byte == b']') {
                    self.close();
                } else {
                    self.state = ScanState::Broken;
                }
            }
            _ => self.state = ScanState::Broken,
        }
    }

    /// The paths of `target` that end at the next value.
    fn complete(&self) -> u32 {
        self.target & self.paths.ending_at(self.depth)
    }

    fn begin_value(&mut self, byte: u8, offset: u64) {
        self.start = offset;
        match byte {
            b'{' | b'[' => self.open(byte == b'['),
            b'"' => self.state = ScanState::Text,
            b'-' | b'0'..=b'9' | b'a'..=b'z'
                if self.target == 0 && self.grammar == Grammar::Lenient =>
            {
                self.state = ScanState::SkipScalar;
            }
            b'-' | b'0'..=b'9' => {
                self.number = NumberReader::default();
                self.number.push(byte);
                self.state = ScanState::Number;
            }
            b't' | b'f' | b'n' => self.state = ScanState::Literal,
            b'N' | b'I' if self.grammar == Grammar::Lenient => self.state = ScanState::Literal,
            _ => self.state = ScanState::Broken,
        }
    }

    /// Opens an object or an array.
    fn open(&mut self, is_array: bool) {
        let complete = self.complete();
        self.find(complete, MemberKind::Container);
        let mask = self.target & !complete;
        if mask == 0 || self.depth == MAX_DEPTH {
            self.skipped = 1;
            self.state = ScanState::Skip;
            return;
        }
        self.levels[self.depth] = Level { is_array, mask, seen: 0, element: 0 };
        self.depth += 1;
        if is_array {
            self.target = self.paths.with_element(mask, self.depth - 1, 0);
            self.state = ScanState::ValueOrEnd;
        } else {
            self.state = ScanState::NameOrEnd;
        }
    }

    /// Closes the innermost object or array that paths lead into.
    fn close(&mut self) {
        self.depth -= 1;
        self.end_value();
    }

    fn end_value(&mut self) {
        if self.depth == 0 {
            if self.grammar == Grammar::Strict {
                self.state = ScanState::End;
            } else {
                self.restart();
            }
            return;
        }
        let level = &self.levels[self.depth - 1];
        if self.depth == 1 && level.is_array && self.paths.has_each(level.mask) {
            self.members.commit();
        }
        self.state = ScanState::AfterValue;
    }

    /// Goes on after a comma.
    fn next_member(&mut self) {
        let depth = self.depth - 1;
        let level = &mut self.levels[depth];
        if level.is_array {
            level.element = level.element.saturating_add(1);
            self.target = self.paths.with_element(level.mask, depth, level.element);
            self.state = ScanState::Value;
        } else {
            self.state = ScanState::NameOrEnd;
        }
    }

    fn find(&mut self, mask: u32, kind: MemberKind) {
        if mask != 0 {
            self.members.set(mask, FoundMember { start: self.start, kind });
        }
    }

    fn read_number(&mut self, byte: u8) -> usize {
        match self.number.push(byte) {
            NumberStep::Taken => 1,
            // `-Infinity`
            NumberStep::Invalid if byte == b'I' && self.grammar == Grammar::Lenient => {
                self.enter(ScanState::Literal)
            }
            NumberStep::Invalid => self.enter(ScanState::Broken),
            NumberStep::Ended => {
                let quantity = self.number.quantity();
                self.find(self.complete(), MemberKind::Number(quantity));
                self.end_value();
                0
            }
        }
    }

    fn read_literal(&mut self, byte: u8) -> usize {
        match byte {
            b'a'..=b'z' => 1,
            b'A'..=b'Z' if self.grammar == Grammar::Lenient => 1,
            b',' | b']' | b'}' | b' ' | b'\t'..=b'\r' => {
                self.find(self.complete(), MemberKind::Literal);
                self.end_value();
                0
            }
            _ => self.enter(ScanState::Broken),
        }
    }

    /// Skips a number or literal, up to what follows it.
    fn skip_scalar(&mut self, bytes: &[u8]) -> usize {
        let is_part =
            |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.');
        let end = bytes.iter().position(|byte| !is_part(byte)).unwrap_or(bytes.len());
        match bytes.get(end) {
            None => {}
            Some(b',' | b']' | b'}' | b' ' | b'\t'..=b'\r') => self.end_value(),
            Some(_) => self.state = ScanState::Broken,
        }
        end
    }

    /// Skips the rest of a string, and its end.
    fn skip_text(&mut self, bytes: &[u8]) -> usize {
        let is_value = self.state == ScanState::Text;
        let mut at = 0;
        while let Some(found) = find_quote(&bytes[at..]) {
            at += found + 1;
            if bytes[at - 1] == b'"' {
                if is_value {
                    self.find(self.complete(), MemberKind::Text);
                    self.end_value();
                } else {
                    self.state = ScanState::Skip;
                }
                return at;
            }
            if at == bytes.len() {
                self.state = if is_value { ScanState::TextEscape } else { ScanState::SkipEscape };
                return at;
            }
            if !self.is_escape(bytes[at]) {
                self.state = ScanState::Broken;
                return bytes.len();
            }
            at += 1;
        }
        bytes.len()
    }

    /// Skips a value that no path leads into.
    fn skip(&mut self, bytes: &[u8]) -> usize {
        let mut at = 0;
        while at < bytes.len() {
            let class = SKIP_CLASS[usize::from(bytes[at])];
            at += 1;
            match class {
                4 if self.grammar == Grammar::Strict => {
                    self.state = ScanState::Broken;
                    return at;
                }
                0 | 4 => {}
                1 => {
                    self.state = ScanState::SkipText;
                    at += self.skip_text(&bytes[at..]);
                    if self.state != ScanState::Skip {
                        return at;
                    }
                }
                2 => self.skipped += 1,
                _ => {
                    self.skipped -= 1;
                    if self.skipped == 0 {
                        self.end_value();
                        return at;
                    }
                }
            }
        }
        at
    }

    /// Reads a name up to its end, or keeps what has arrived of it.
    fn read_name(&mut self, bytes: &[u8]) -> usize {
        let Some(end) = find_quote(bytes) else {
            self.keep_name(bytes);
            return bytes.len();
        };
        if bytes[end] == b'\\' {
            self.keep_name(&bytes[..=end]);
            self.state = ScanState::NameEscape;
            return end + 1;
        }
        if self.name.is_empty() {
            self.match_name(&bytes[..end]);
        } else {
            self.keep_name(&bytes[..end]);
            let raw = std::mem::take(&mut self.name);
            if raw.len() > MAX_RAW_NAME {
                self.target = 0;
            } else if raw.contains(&b'\\') {
                let quoted = [b"\"", &*raw, b"\""].concat();
                match serde_json::from_slice::<String>(&quoted) {
                    Ok(name) => self.match_name(name.as_bytes()),
                    Err(_) if self.grammar == Grammar::Strict => {
                        self.state = ScanState::Broken;
                        return end + 1;
                    }
                    Err(_) => self.target = 0,
                }
            } else {
                self.match_name(&raw);
            }
            self.name = raw;
        }
        self.state = ScanState::Colon;
        end + 1
    }

    /// Keeps a piece of a name, unless it is too long to match.
    fn keep_name(&mut self, piece: &[u8]) {
        let room = (MAX_RAW_NAME + 1).saturating_sub(self.name.len());
        self.name.extend_from_slice(&piece[..piece.len().min(room)]);
    }

    /// Finds the paths that lead to the member of this name.
    fn match_name(&mut self, name: &[u8]) {
        let depth = self.depth - 1;
        let Level { mask, seen, .. } = self.levels[depth];
        self.target = self.paths.with_name(mask, depth, |wanted| wanted.as_bytes() == name);
        if self.grammar == Grammar::Strict {
            self.members.misspelt |=
                self.paths.with_name(mask, depth, |wanted| is_misspelt(name, wanted));
        }
        if self.target != 0 {
            self.members.clear(self.target);
            self.members.repeated |= seen & self.target;
            self.levels[depth].seen |= self.target;
        }
    }
}

/// Where the first quote or backslash is.
fn find_quote(bytes: &[u8]) -> Option<usize> {
    // Names are short: a call of the vector code costs more than it spares.
    let (start, rest) = bytes.split_at(bytes.len().min(SHORT_TEXT));
    let found = start.iter().position(|byte| matches!(byte, b'"' | b'\\'));
    found.or_else(|| memchr2(b'"', b'\\', rest).map(|at| at + start.len()))
}

/// True if `name` is `wanted` to a parser that ignores capitals, as Go's does, but not the same.
fn is_misspelt(name: &[u8], wanted: &str) -> bool {
    if name == wanted.as_bytes() {
        return false;
    }
    if name.is_ascii() {
        return name.eq_ignore_ascii_case(wanted.as_bytes());
    }
    let Ok(name) = std::str::from_utf8(name) else { return false };
    // The two letters beyond ASCII that fold to letters of ASCII.
    let fold = |letter: char| match letter {
        '\u{17f}' => 's',
        '\u{212a}' => 'k',
        other => other,
    };
    let folded = name.chars().flat_map(|letter| fold(letter).to_lowercase());
    folded.eq(wanted.chars().flat_map(char::to_lowercase))
}
