//! The values in one line of YAML or JSON, each with its key and the key around it, also if the
//! line is malformed.

/// Number of lines above a line that are searched for the key around it.
const MAX_LINES: usize = 1_000;

/// A scalar in a line.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct LineValue<'l> {
    /// The key of the list or mapping around it, if it has one.
    pub(super) parent: Option<&'l str>,
    /// Its own key; `None` for an item of a list, and for text without one.
    pub(super) key: Option<&'l str>,
    /// The value, without quotes.
    pub(super) text: &'l str,
    /// Where it begins in the line, in bytes.
    pub(super) start: usize,
}

/// What a line stands in.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Enclosing<'t> {
    /// The key, if there is one.
    pub(super) key: Option<&'t str>,
    /// Braces or brackets are open: commas separate values.
    is_flow: bool,
}

/// The state of reading a line.
#[derive(Default)]
struct LineScan<'l> {
    values: Vec<LineValue<'l>>,
    /// The key of each list or mapping that is open, the innermost last.
    open: Vec<Option<&'l str>>,
    /// Number of lists and mappings that end here and began in a line above.
    closed: usize,
    key: Option<&'l str>,
    last_key: Option<&'l str>,
    /// Where the line's comment begins, in bytes.
    comment: Option<usize>,
}

/// The line without its comment, which may be an old value of a secret.
pub(super) fn without_comment<'l>(line: &'l str, around: Enclosing<'l>) -> &'l str {
    let end = LineScan::read(line, around).comment.unwrap_or(line.len());
    line[..end].trim_end()
}

/// The values of a line.
pub(super) fn values<'l>(line: &'l str, around: Enclosing<'l>) -> Vec<LineValue<'l>> {
    LineScan::read(line, around).values
}

/// What `line` stands in, after the lines in `before`.
pub(super) fn enclosing<'t>(before: &'t str, line: &str) -> Enclosing<'t> {
    let Some(found) = find_enclosing(before, line) else { return Enclosing::default() };
    // The items of a list are values of the field whose list it is.
    let outer = find_enclosing(found.before, found.line).map(|outer| outer.enclosing);
    match outer {
        Some(outer) if outer.key.is_some_and(writes_fields) => outer,
        _ => found.enclosing,
    }
}

/// True for the key of a mapping of header fields to the values that the gateway writes.
pub(super) fn writes_fields(key: &str) -> bool {
    matches!(key, "set" | "add")
}

/// A line that encloses others.
struct EnclosingLine<'t> {
    enclosing: Enclosing<'t>,
    line: &'t str,
    before: &'t str,
}

fn find_enclosing<'t>(before: &'t str, line: &str) -> Option<EnclosingLine<'t>> {
    let (mut limit, mut is_item) = (indent(line), is_item(line));
    let (mut closed, mut rest) = (0, before);
    for _ in 0..MAX_LINES {
        if rest.is_empty() {
            break;
        }
        let ended = rest.strip_suffix('\n').unwrap_or(rest);
        let (before, line) = ended.split_at(ended.rfind('\n').map_or(0, |at| at + 1));
        rest = before;
        let code = line.trim();
        if code.is_empty() || code.starts_with('#') {
            continue;
        }
        let scan = LineScan::read(line, Enclosing::default());
        if scan.open.len() > closed {
            let key = scan.open[scan.open.len() - 1 - closed];
            let enclosing = Enclosing { key, is_flow: true };
            return Some(EnclosingLine { enclosing, line, before });
        }
        closed = closed - scan.open.len() + scan.closed;
        let (depth, is_item_above) = (indent(line), self::is_item(line));
        // A list may be indented as its key is.
        let is_around = depth < limit || depth == limit && is_item && !is_item_above;
        if closed > 0 || !is_around {
            continue;
        }
        // `- a: 1` is a neighbour of a line `  b: 2` below it.
        if is_item_above && content_indent(line) >= limit {
            (limit, is_item) = (depth, true);
            continue;
        }
        let enclosing = Enclosing { key: scan.last_key, is_flow: false };
        return Some(EnclosingLine { enclosing, line, before });
    }
    None
}

fn indent(line: &str) -> usize {
    line.len() - line.trim_start_matches(' ').len()
}

fn is_item(line: &str) -> bool {
    let code = line.trim_start_matches(' ');
    code == "-" || code.starts_with("- ")
}

/// Where the content of a list's item begins.
fn content_indent(line: &str) -> usize {
    line.len() - line.trim_start_matches([' ', '-']).len()
}

impl<'l> LineScan<'l> {
    fn read(line: &'l str, around: Enclosing<'l>) -> Self {
        let mut scan = Self::default();
        if around.is_flow {
            scan.open.push(around.key);
        }
        let depth = scan.open.len();
        let mut at = 0;
        while let Some(byte) = line.as_bytes().get(at).copied() {
            let is_spaced = line[..at].ends_with([' ', '\t']) || at == 0;
            let next = line.as_bytes().get(at + 1);
            let has_space = next.is_none_or(|next| matches!(next, b' ' | b'\t'));
            match byte {
                b' ' | b'\t' => at += 1,
                b'#' if is_spaced => {
                    scan.comment = Some(at);
                    break;
                }
                b'-' | b'?' if has_space && scan.key.is_none() => at += 1,
                b'{' | b'[' => {
                    let parent = scan.open.last().copied().unwrap_or(around.key);
                    let key = scan.key.take();
                    scan.open.push(parent.filter(|parent| writes_fields(parent)).or(key));
                    at += 1;
                }
                b'}' | b']' => {
                    scan.closed += usize::from(scan.open.pop().is_none());
                    scan.key = None;
                    at += 1;
                }
                b',' => {
                    scan.key = None;
                    at += 1;
                }
                _ => at = scan.token(line, at, around),
            }
        }
        // What the caller has opened is no part of the line.
        scan.open.drain(..depth.min(scan.open.len()));
        scan
    }

    /// Reads the key or the value at `at`; returns where the text goes on.
    fn token(&mut self, line: &'l str, at: usize, around: Enclosing<'l>) -> usize {
        let rest = &line[at..];
        let quote = rest.chars().next().filter(|c| matches!(c, '"' | '\''));
        let (text, start, end) = if let Some(quote) = quote {
            let length = quoted_length(&rest[1..], quote);
            (&rest[1..=length], at + 1, (at + 1 + length + 1).min(line.len()))
        } else {
            let length = plain_length(rest, self.open.is_empty());
            (rest[..length].trim_end(), at, at + length)
        };
        let after = line[end..].trim_start_matches([' ', '\t']);
        if after.starts_with(':') && self.key.is_none() {
            (self.key, self.last_key) = (Some(text), Some(text));
            return line.len() - after.len() + 1;
        }
        let parent = self.open.last().copied().unwrap_or(around.key);
        if !text.is_empty() {
            self.values.push(LineValue { parent, key: self.key, text, start });
        }
        if !self.open.is_empty() {
            self.key = None;
        }
        // Text that neither a quote nor a separator ends, such as a second colon, must not be read
        // twice.
        end.max(at + 1)
    }
}

/// The number of bytes before the closing quote.
fn quoted_length(text: &str, quote: char) -> usize {
    let mut is_escaped = false;
    let end = text.find(|c: char| {
        let ends = c == quote && !is_escaped;
        is_escaped = quote == '"' && c == '\\' && !is_escaped;
        ends
    });
    end.unwrap_or(text.len())
}

/// The number of bytes of a value without quotes.
fn plain_length(text: &str, is_block: bool) -> usize {
    let bytes = text.as_bytes();
    let is_end = |at: usize| match bytes[at] {
        b':' => bytes.get(at + 1).is_none_or(|next| b" \t,[]{}\"'".contains(next)),
        b'#' => at > 0 && bytes[at - 1] == b' ',
        b',' | b'{' | b'}' | b'[' | b']' => !is_block,
        _ => false,
    };
    (0..bytes.len()).find(|at| is_end(*at)).unwrap_or(bytes.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Vec<String> {
        let shown = |own: LineValue<'_>| {
            assert!(line[own.start..].starts_with(own.text));
            let name = |name: Option<&str>| name.unwrap_or("-").to_owned();
            format!("{} {} {}", name(own.parent), name(own.key), own.text)
        };
        values(line, Enclosing::default()).into_iter().map(shown).collect()
    }

    #[test]
    fn values_have_their_keys() {
        for (line, expected) in [
            ("  - {id: a, sha256: 'b, c', x: d}", &["- id a", "- sha256 b, c", "- x d"][..]),
            ("keys: [a, {id: b}]", &["keys - a", "- id b"]),
            ("{\"keys\":[\"a\\\"b\"],\"c\":1}", &["keys - a\\\"b", "- c 1"]),
            ("password: a, b # c", &["- password a, b"]),
            ("a: http://b:1/c", &["- a http://b:1/c"]),
            ("set: {x: y, z: [a", &["set x y", "set - a"]),
            ("hunter2", &["- - hunter2"]),
            ("'a", &["- - a"]),
            ("]}: é", &["-  é"]),
            ("a: b: c", &["- a b", "- a c"]),
        ] {
            assert_eq!(read(line), expected, "{line}");
        }
    }

    #[test]
    fn a_comment_begins_outside_of_quotes() {
        for (line, expected) in [
            ("password: env:P # hunter2", "password: env:P"),
            ("  # hunter2", ""),
            ("a: 'b # c' # d", "a: 'b # c'"),
            ("a: b#c", "a: b#c"),
            ("a: {b: 'c', # d", "a: {b: 'c',"),
        ] {
            assert_eq!(without_comment(line, Enclosing::default()), expected, "{line}");
        }
    }

    #[test]
    fn the_key_around_a_line_is_found() {
        for (text, expected) in [
            ("keys:\n  - x", Some("keys")),
            ("keys:\n- x", Some("keys")),
            ("keys:\n  # c\n\n  - a\n  - x", Some("keys")),
            ("keys:\n  - sha256: a\n    x", Some("keys")),
            ("keys:\n  - sha256: a\n    id: x", Some("keys")),
            ("keys: [\n  a,\nx", Some("keys")),
            ("{\"keys\": [\n\"a\",\n\"x\"", Some("keys")),
            ("{\"keys\": [\n\"a\"\n],\n\"x\": 1", None),
            ("request:\n  set:\n    a: b\n    x: c", Some("set")),
            ("set:\n  a:\n    - b\n    - x", Some("set")),
            ("password: |\n  x", Some("password")),
            ("a: 1\nx", None),
        ] {
            let start = text.rfind('\n').unwrap() + 1;
            let (before, line) = text.split_at(start);
            assert_eq!(enclosing(before, line).key, expected, "{text}");
        }
    }
}
