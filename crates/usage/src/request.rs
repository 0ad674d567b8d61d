//! [`RequestMembers`]: the members of a request's JSON body that limits read.

use std::sync::Arc;

use serde::de::IgnoredAny;

use super::{
    json::{Grammar, JsonScanner},
    members::{FoundMember, MemberKind},
    number::Quantity,
    path::{JsonPath, PathSet},
    utf8::Utf8Check,
};

/// The members of a request's body at the paths of a set.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct RequestMembers(Vec<(JsonPath, MemberValue)>);

/// The value of a member of a request.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum MemberValue {
    /// There is none, or it is `null`.
    Missing,
    /// A string.
    Text(String),
    /// A number, and its text, which is the same for all spellings.
    Number(Quantity, String),
    /// `true` or `false`.
    Bool(bool),
    /// An object or an array.
    Container,
}

impl MemberValue {
    /// A text or a number, as JSON.
    pub fn as_json(&self) -> Option<String> {
        match self {
            Self::Text(text) => serde_json::to_string(text).ok(),
            Self::Number(_, number) => {
                let number = serde_json::from_str::<serde_json::Number>(number).ok()?;
                Some(number.to_string())
            }
            Self::Missing | Self::Bool(_) | Self::Container => None,
        }
    }
}

/// The reason why the members of a request cannot be read.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum UnreadableBody {
    /// The body is no JSON.
    #[error("the request's body must be JSON, because its limits read it: {0}")]
    NotJson(String),
    /// The body has another type.
    #[error(
        "the request's body must be JSON in UTF-8, because its limits read it; send `content-type: application/json`"
    )]
    MediaType,
    /// The body is compressed.
    #[error(
        "the request's body must not be compressed, because its limits read it; send it without `content-encoding`"
    )]
    Coded,
    /// A member is not in the first bytes of a longer body.
    #[error(
        "the limits of this request read `{path}` of its body, which is not within the first {max} bytes"
    )]
    TooLong {
        /// The member.
        path: String,
        /// The number of bytes that are read.
        max: u64,
    },
    /// A member occurs twice.
    #[error("`{0}` must be in the request's body at most once: requests are counted by it")]
    Repeated(String),
    /// The rest of a longer body is no JSON, or has a member that is counted.
    #[error(
        "the rest of the request's body is no JSON, or has a member by which requests are counted: send that before long texts"
    )]
    Rest,
    /// A member has a name that some upstreams read as another one.
    #[error(
        "a member of the request's body can be taken for `{0}`, by which requests are counted; send only `{0}`"
    )]
    Misspelt(String),
}

impl UnreadableBody {
    /// True if the body can be read in more than one way. False if nothing can be read of it.
    pub fn is_ambiguous(&self) -> bool {
        matches!(self, Self::Repeated(_) | Self::Misspelt(_) | Self::Rest)
    }
}

/// Finds members of a request's body, which must be one JSON text in UTF-8.
#[derive(Debug)]
pub struct RequestScanner {
    json: JsonScanner,
    utf8: Utf8Check,
    is_utf8: bool,
}

impl RequestScanner {
    /// A scanner at the beginning of a body.
    pub fn new(paths: Arc<PathSet>) -> Self {
        let json = JsonScanner::new(paths, Grammar::Strict);
        Self { json, utf8: Utf8Check::default(), is_utf8: true }
    }

    /// Looks at the next bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.is_utf8 &= self.utf8.push(bytes);
        self.json.push(bytes);
    }

    /// The member at the path with this index.
    pub fn member(&self, path: usize) -> Option<FoundMember> {
        self.json.member(path)
    }

    /// The paths of the members that were found, as bits.
    pub fn found(&self) -> u32 {
        let paths = 0..self.json.paths().paths().len();
        paths.filter(|path| self.member(*path).is_some()).fold(0, |mask, path| mask | 1 << path)
    }

    /// Checks what has arrived: that it can go on as JSON, and that each member can be read in one
    /// way alone.
    ///
    /// # Errors
    /// It is no JSON, or a member occurs twice in an object, or under a name that differs in
    /// capitals alone.
    pub fn check(&self) -> Result<(), UnreadableBody> {
        if !self.is_utf8 {
            return Err(UnreadableBody::NotJson("it is not UTF-8".to_owned()));
        }
        if self.json.is_broken() {
            return Err(UnreadableBody::NotJson("it has a syntax error".to_owned()));
        }
        let first = |mask: u32| self.json.paths().paths().get(mask.trailing_zeros() as usize);
        if let Some(path) = first(self.json.repeated()) {
            return Err(UnreadableBody::Repeated(path.to_string()));
        }
        match first(self.json.misspelt()) {
            Some(path) => Err(UnreadableBody::Misspelt(path.to_string())),
            None => Ok(()),
        }
    }

    /// Checks the end of the body.
    ///
    /// # Errors
    /// See [`Self::check`]; or the text has not ended.
    pub fn check_end(&mut self) -> Result<(), UnreadableBody> {
        // A number that is the whole text ends with it.
        self.json.push(b" ");
        self.check()?;
        if self.json.has_ended() && self.utf8.is_complete() {
            return Ok(());
        }
        Err(UnreadableBody::NotJson("it ends too early".to_owned()))
    }
}

impl RequestMembers {
    /// Reads the members that `scanner` has found in `body`. If the body `is_complete`, checks that
    /// it is JSON.
    ///
    /// # Errors
    /// The body is no JSON, or a member can be read in more than one way.
    pub fn read(
        scanner: &RequestScanner,
        body: &[u8],
        is_complete: bool,
    ) -> Result<Self, UnreadableBody> {
        if is_complete {
            let not_json = |error: serde_json::Error| UnreadableBody::NotJson(error.to_string());
            serde_json::from_slice::<IgnoredAny>(body).map_err(not_json)?;
        }
        scanner.check()?;
        let paths = scanner.json.paths().paths().iter().enumerate();
        let member = |(index, path): (usize, &JsonPath)| {
            let value = match scanner.member(index) {
                None => MemberValue::Missing,
                Some(found) => value(body, found, path)?,
            };
            Ok((path.clone(), value))
        };
        paths.map(member).collect::<Result<_, _>>().map(Self)
    }

    /// Reads the members at `paths` of a complete `body`.
    ///
    /// # Errors
    /// See [`Self::read`].
    pub fn of(paths: PathSet, body: &[u8]) -> Result<Self, UnreadableBody> {
        let mut scanner = RequestScanner::new(paths.into());
        scanner.push(body);
        Self::read(&scanner, body, true)
    }

    /// The member at `path`.
    pub fn get(&self, path: &JsonPath) -> &MemberValue {
        let found = self.0.iter().find(|(own, _)| own == path);
        found.map_or(&MemberValue::Missing, |(_, value)| value)
    }
}

/// The value of a member that was found in `body`.
fn value(body: &[u8], found: FoundMember, path: &JsonPath) -> Result<MemberValue, UnreadableBody> {
    let start = usize::try_from(found.start).unwrap_or(usize::MAX);
    let text = body.get(start..).unwrap_or_default();
    // The value is the first of what follows.
    let mut values = serde_json::Deserializer::from_slice(text).into_iter::<serde_json::Value>();
    Ok(match found.kind {
        MemberKind::Container => MemberValue::Container,
        MemberKind::Number(quantity) => {
            let number = match values.next() {
                Some(Ok(serde_json::Value::Number(number))) => canonical_number(&number),
                // Beyond the largest number of JSON's readers, which take it as infinite.
                _ if text.starts_with(b"-") => "-inf".to_owned(),
                _ => "inf".to_owned(),
            };
            MemberValue::Number(quantity, number)
        }
        MemberKind::Literal => match values.next() {
            Some(Ok(serde_json::Value::Bool(value))) => MemberValue::Bool(value),
            _ => MemberValue::Missing,
        },
        MemberKind::Text => match values.next() {
            Some(Ok(serde_json::Value::String(text))) => MemberValue::Text(text),
            _ => return Err(UnreadableBody::NotJson(format!("`{path}` is no valid text"))),
        },
    })
}

/// One text for all spellings of a number: `1`, `1.0` and `1e0` are `1`.
fn canonical_number(number: &serde_json::Number) -> String {
    match number.as_f64() {
        Some(0.0) => "0".to_owned(),
        Some(float) if number.is_f64() => float.to_string(),
        _ => number.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &str) -> Result<RequestMembers, UnreadableBody> {
        let paths = ["model", "o.max"].map(|path| path.parse().unwrap());
        RequestMembers::of(PathSet::new(paths.into()).unwrap(), body.as_bytes())
    }

    #[test]
    fn one_value_has_one_text() {
        let model = |body: &str| read(body).unwrap().get(&"model".parse().unwrap()).clone();
        assert_eq!(model(r#"{"model":"a\u0062"}"#), MemberValue::Text("ab".to_owned()));
        for one in ["1", "1.0", "10e-1", "0.1e1"] {
            let number = model(&format!("{{\"model\":{one}}}"));
            let expected = MemberValue::Number(Quantity::units(1), "1".to_owned());
            assert_eq!(number, expected, "{one}");
        }
        for (number, quantity, text) in [
            ("1e309", Quantity::MAX, "inf"),
            (&*"9".repeat(400), Quantity::MAX, "inf"),
            ("-1e309", Quantity::units(0), "-inf"),
            ("-0.0", Quantity::units(0), "0"),
        ] {
            let expected = MemberValue::Number(quantity, text.to_owned());
            assert_eq!(model(&format!("{{\"model\":{number}}}")), expected, "{number}");
        }
        assert_eq!(model(r#"{"model":true}"#), MemberValue::Bool(true));
        assert_eq!(model(r#"{"model":[1]}"#), MemberValue::Container);
        for missing in ["{}", r#"{"model":null}"#, "[]", "1", r#"{"o":{"model":"x"}}"#] {
            assert_eq!(model(missing), MemberValue::Missing, "{missing}");
        }
    }

    #[test]
    fn what_can_be_read_in_two_ways_is_refused() {
        for (body, error) in [
            (r#"{"model":"a","model":"a"}"#, "`model` must be in the request's body at most once"),
            (r#"{"model":"a","mod\u0065l":"b"}"#, "`model` must be in"),
            (r#"{"o":{},"o":{"max":1}}"#, "`o.max` must be in"),
            (r#"{"model":"a","Model":"b"}"#, "can be taken for `model`"),
            (r#"{"model":"a"} {}"#, "must be JSON"),
            (r#"{"model":"a",}"#, "must be JSON"),
            ("", "must be JSON"),
            ("model=a", "must be JSON"),
        ] {
            let found = read(body).unwrap_err().to_string();
            assert!(found.contains(error), "{body}: {found}");
        }
    }
}
