//! What a client reads, in a normal form.

use std::fmt::Write;

use testkit::client::Client;

/// Fields of an upstream's answer that are shown.
const FIELDS: [&str; 5] = ["upgrade", "via", "x-kept", "x_kept", "link"];

/// One response as text.
pub(crate) struct Shown {
    /// Its status; of an answer of the upstream's with a mark (`X-Origin`) also its fields, body
    /// and trailers.
    pub(crate) text: String,
    pub(crate) is_interim: bool,
}

/// Reads one response; `None` if the connection ends or waits before its head is complete.
pub(crate) fn read(client: &mut Client, to_head: bool) -> Option<Shown> {
    let (status, head) = client.read_head()?;
    let is_interim = (100..200).contains(&status) && status != 101;
    let has_body = !(to_head || (100..200).contains(&status) || matches!(status, 204 | 304));
    let body = match status {
        101 => Some(Body::of_tunnel(client)),
        _ if has_body => Body::read(client, &head),
        _ => Some(Body::default()),
    };
    let is_answer = field(&head, "x-origin").is_some();
    let mut text = status.to_string();
    if is_answer || is_interim {
        for (name, value) in FIELDS.iter().filter_map(|name| Some((name, field(&head, name)?))) {
            let _ = write!(text, " {name}={value:?}");
        }
    }
    if is_answer && !has_body {
        for name in ["content-length", "transfer-encoding"] {
            text += &field(&head, name).map(|it| format!(" {name}={it:?}")).unwrap_or_default();
        }
    }
    text += &match body {
        None => " cut".to_owned(),
        Some(body) if is_answer => body.shown(),
        Some(_) => String::new(),
    };
    Some(Shown { text, is_interim })
}

#[derive(Default)]
struct Body {
    content: Vec<u8>,
    trailers: String,
}

impl Body {
    fn only(content: Vec<u8>) -> Self {
        Self { content, trailers: String::new() }
    }

    /// The first line that came through a tunnel; nothing if it waits.
    fn of_tunnel(client: &mut Client) -> Self {
        let mut content = client.read_to_end().unwrap_or_default();
        content.truncate(content.iter().position(|&byte| byte == b'\r').unwrap_or(usize::MAX));
        Self::only(content)
    }

    /// Reads it to its end; `None` if the connection ends first.
    fn read(client: &mut Client, head: &str) -> Option<Self> {
        if field(head, "transfer-encoding").is_some() {
            let (content, trailers) = client.read_chunked()?;
            return Some(Self { content, trailers });
        }
        match field(head, "content-length") {
            Some(length) => client.read_exact(length.parse().expect("a length")).map(Self::only),
            None => client.read_to_end().ok().map(Self::only),
        }
    }

    fn shown(&self) -> String {
        let mut text = String::new();
        if !self.content.is_empty() {
            let _ = write!(text, " {:?}", String::from_utf8_lossy(&self.content));
        }
        if !self.trailers.is_empty() {
            let _ = write!(text, " {} bytes of trailers", self.trailers.len());
        }
        text
    }
}

/// The value of the first field `name`.
fn field<'h>(head: &'h str, name: &str) -> Option<&'h str> {
    head.lines().find_map(|line| {
        let (own, value) = line.split_once(':')?;
        own.trim_end().eq_ignore_ascii_case(name).then(|| value.trim())
    })
}
