//! Overrides as the admin API lists them. So `explain` knows the ones in Redis, to which it has no
//! connection.

use std::path::Path;

use serde_json::{Deserializer, Value};
use tidegate_config::{Fault, Faults};

use super::{
    file::{OverridesContent, parse_file, read_text},
    record::Override,
    set::OverrideSet,
};

/// The request whose answers are read.
const REQUEST: &str = "the answers of `GET /api/overrides`, one after the other";

/// The members of a listed override that are texts of a record. The others are for readers.
const TEXTS: [&str; 8] = ["limit", "consumer", "plan", "hash", "quota", "until", "reason", "by"];

/// An answer of `GET /api/overrides`.
struct ListedPage {
    overrides: Vec<Value>,
    total: usize,
}

impl ListedPage {
    /// `None` if `answer` is something else.
    fn of(mut answer: Value) -> Option<Self> {
        let total = usize::try_from(answer.get("total")?.as_u64()?).ok()?;
        match answer.get_mut("overrides")?.take() {
            Value::Array(overrides) => Some(Self { overrides, total }),
            _ => None,
        }
    }
}

/// The record of a listed override, as it is kept.
fn record(listed: &Value) -> Value {
    let texts =
        TEXTS.iter().filter_map(|name| Some(((*name).to_owned(), listed.get(*name)?.clone())));
    Value::Object(texts.collect())
}

/// Reads the file at `path`: a file of overrides, or the list of the admin API. May block; see
/// [`file::read_within`](tidegate_system::file::read_within).
///
/// # Errors
///
/// It is missing, cannot be read, or has a fault.
pub fn read_file_or_list(path: &Path) -> Result<OverridesContent, Faults> {
    let name = path.display().to_string();
    let fault = |what: &str, expected: &str| Faults::from(Fault::of_file(&name, what, expected));
    let text = read_text(path)?.ok_or_else(|| {
        let expected = "a file of overrides, or the answer of `GET /api/overrides`";
        Faults::from(Fault::of_whole_file(&name, "the file does not exist", expected))
    })?;
    match parse_list(&text) {
        Some(Ok(set)) => Ok(OverridesContent { set, ..OverridesContent::default() }),
        Some(Err(what)) => Err(fault(&what, REQUEST)),
        None => parse_file(&name, &text),
    }
}

/// Parses the answers of `GET /api/overrides`, one after the other if there are several pages.
/// `None` if the text is something else.
///
/// # Errors
///
/// What is wrong with it: a malformed answer, or a page that is missing.
pub fn parse_list(text: &str) -> Option<Result<OverrideSet, String>> {
    let mut pages = Deserializer::from_str(text).into_iter::<Value>();
    let mut page = ListedPage::of(pages.next()?.ok()?)?;
    let mut set = OverrideSet::default();
    loop {
        let total = page.total;
        for listed in &page.overrides {
            match Override::of_json(record(listed).to_string().as_bytes()) {
                Ok(own) => set.insert(own),
                Err(error) => return Some(Err(error)),
            };
        }
        page = match pages.next().map(|next| next.ok().and_then(ListedPage::of)) {
            Some(Some(next)) => next,
            Some(None) => return Some(Err("a malformed answer after the first".to_owned())),
            None if set.len() < total => {
                return Some(Err(format!("{} of {total} overrides", set.len())));
            }
            None => return Some(Ok(set)),
        };
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn page(names: &[&str], total: usize) -> String {
        let overrides = names.iter().map(|name| {
            json!({"id": "x", "limit": "each", "consumer": name, "plan": null, "hash": null, "quota": "9",
                   "until": "2099-12-01T00:00:00Z", "reason": "launch", "by": "admin", "set_at_ms": 1,
                   "in_force": true, "fault": null})
        });
        let overrides: Vec<Value> = overrides.collect();
        json!({"overrides": overrides, "total": total, "next": null, "place": "redis"}).to_string()
    }

    fn texts(list: &str) -> Option<Result<Vec<String>, String>> {
        let set = parse_list(list)?;
        Some(set.map(|set| set.iter().map(|(_, own)| own.to_string()).collect()))
    }

    #[test]
    fn pages_are_read_one_after_the_other() {
        let acme = "each, consumer acme: 9 until 2099-12-01T00:00:00Z".to_owned();
        assert_eq!(texts(&page(&["acme"], 1)), Some(Ok(vec![acme])));
        assert_eq!(texts(&page(&[], 0)), Some(Ok(vec![])));
        let both = format!("{}\n{}", page(&["acme"], 2), page(&["bread"], 2));
        assert_eq!(texts(&both).unwrap().unwrap().len(), 2);
        assert_eq!(texts(&page(&["acme"], 2)), Some(Err("1 of 2 overrides".to_owned())));
        let cut = format!("{} {{", page(&["acme"], 1));
        assert_eq!(texts(&cut), Some(Err("a malformed answer after the first".to_owned())));
        let wrong = page(&["acme"], 1).replace("\"9\"", "\"lots\"");
        assert!(texts(&wrong).unwrap().unwrap_err().contains("`lots`"));
        for other in ["", "overrides: []\n", "{\"overrides\": []}", "{overrides: []}", "[]"] {
            assert_eq!(texts(other), None, "{other}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_a_panic(text in "\\PC{0,60}", at in any::<prop::sample::Index>()) {
            let mut list = page(&["acme"], 1);
            list.insert_str(at.index(list.len()), &text);
            let _ = parse_list(&list);
            let _ = parse_list(&text);
        }
    }
}
