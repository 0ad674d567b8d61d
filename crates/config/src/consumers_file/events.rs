//! [`EventReader`]: reads records by the events of the YAML parser, with a fault for each value
//! that is wrong.

use std::borrow::Cow;

use saphyr_parser::{Event, Parser, ScalarStyle, Span, StrInput};

use super::super::fault::Mismatch;
use super::super::located::{LocatedMismatch, quote_value, span_location, syntax_fault};
use super::super::location::Location;
use super::super::suggest::suggest_key;
use super::{FileFaults, KeyPlaces, KeyRecord, LIST, PlacedRecord, RecordSink, mismatch};

/// The keys of a record.
const RECORD_KEYS: [&str; 7] =
    ["name", "plan", "billing_day", "keys", "password", "labels", "disabled"];
/// The keys of a key.
const KEY_KEYS: [&str; 3] = ["id", "sha256", "expires"];

/// Reads a text that is a list of records.
pub(super) struct EventReader<'t> {
    text: &'t str,
    parser: Parser<'t, StrInput<'t>>,
}

/// A value that has begun.
enum YamlValue<'t> {
    /// A complete scalar; `None` if it is null.
    Scalar(Option<Cow<'t, str>>),
    List,
    Mapping,
}

/// A value and its place.
struct PlacedValue<'t> {
    value: YamlValue<'t>,
    location: Location,
}

/// A fault that ends the reading.
type Stop = LocatedMismatch;

impl<'t> EventReader<'t> {
    /// A reader of `text`.
    pub(super) fn new(text: &'t str) -> Self {
        Self { text, parser: Parser::new_from_str(text) }
    }

    /// Reads all records.
    pub(super) fn read(
        mut self,
        sink: &mut dyn RecordSink,
        faults: &mut FileFaults<'_>,
    ) -> Result<(), Stop> {
        let (mut has_document, mut has_list) = (false, false);
        loop {
            let (event, location) = self.next()?;
            match event {
                Event::StreamEnd if has_list => return Ok(()),
                Event::StreamEnd => return Err((location, no_list())),
                Event::DocumentStart(_) if has_document => {
                    let second = Mismatch::new("a second document", "one document in a file");
                    return Err((location, second));
                }
                Event::DocumentStart(_) => has_document = true,
                Event::StreamStart | Event::DocumentEnd | Event::Nothing => {}
                event => match Self::value(event, location)?.value {
                    YamlValue::List => {
                        has_list = true;
                        self.read_records(sink, faults)?;
                    }
                    // Nothing is no empty list: it would lock every customer out.
                    YamlValue::Scalar(None) => return Err((location, no_list())),
                    value => {
                        has_list = true;
                        let expected = "a list of consumers, such as `- name: acme`";
                        faults.add(location, &found(&value, expected));
                        self.skip(&value)?;
                    }
                },
            }
        }
    }

    fn read_records(
        &mut self,
        sink: &mut dyn RecordSink,
        faults: &mut FileFaults<'_>,
    ) -> Result<(), Stop> {
        while let Some(PlacedValue { value, location }) = self.next_item()? {
            if faults.is_full() {
                return Err((location, Mismatch::new("more faults", "fewer")));
            }
            let YamlValue::Mapping = value else {
                faults.add(location, &found(&value, "a mapping with the name of a consumer"));
                self.skip(&value)?;
                continue;
            };
            let faults_before = faults.faults.len();
            let placed = self.read_record(location, faults)?;
            if faults.faults.len() == faults_before {
                faults.pass_on(&placed, location.line, sink);
            }
        }
        Ok(())
    }

    fn read_record(
        &mut self,
        start: Location,
        faults: &mut FileFaults<'_>,
    ) -> Result<PlacedRecord<'t>, Stop> {
        let mut placed = PlacedRecord::default();
        let mut seen = Seen::new(&RECORD_KEYS);
        while let Some(key) = self.next_key(&mut seen, faults)? {
            let next = self.next_value()?;
            let place = Some(next.location);
            match key {
                RecordKey::Known("name") => {
                    placed.record.name = self.text_of(next, faults)?.unwrap_or_default();
                    placed.places.name = place;
                }
                RecordKey::Known("plan") => {
                    placed.record.plan = self.text_of(next, faults)?;
                    placed.places.plan = place;
                }
                RecordKey::Known("billing_day") => {
                    placed.record.billing_day = self.text_of(next, faults)?;
                    placed.places.billing_day = place;
                }
                RecordKey::Known("password") => {
                    placed.record.password = self.text_of(next, faults)?;
                    placed.places.password = place;
                }
                RecordKey::Known("disabled") => {
                    placed.record.is_disabled = self.flag(&next, faults)?;
                }
                RecordKey::Known("keys") => self.read_keys(next, &mut placed, faults)?,
                RecordKey::Known("labels") => self.read_labels(next, faults)?,
                RecordKey::Known(_) | RecordKey::Reported => self.skip(&next.value)?,
            }
        }
        if !seen.has("name") {
            let expected = "a line `name: ...` in this record";
            faults.add(start, &Mismatch::new("missing key `name`", expected));
        }
        Ok(placed)
    }

    fn read_keys(
        &mut self,
        list: PlacedValue<'t>,
        placed: &mut PlacedRecord<'t>,
        faults: &mut FileFaults<'_>,
    ) -> Result<(), Stop> {
        let expected = "a list of keys, such as `- {id: 2026-11, sha256: ...}`";
        match list.value {
            YamlValue::List => {}
            YamlValue::Scalar(None) => return Ok(()),
            value => {
                faults.add(list.location, &found_secret(&value, expected));
                return self.skip(&value);
            }
        }
        while let Some(PlacedValue { value, location }) = self.next_item()? {
            let YamlValue::Mapping = value else {
                faults.add(location, &found_secret(&value, "a mapping with the `sha256` of a key"));
                self.skip(&value)?;
                continue;
            };
            self.read_key(location, placed, faults)?;
        }
        Ok(())
    }

    fn read_key(
        &mut self,
        start: Location,
        placed: &mut PlacedRecord<'t>,
        faults: &mut FileFaults<'_>,
    ) -> Result<(), Stop> {
        let mut key = KeyRecord::default();
        let mut places = KeyPlaces::default();
        let mut seen = Seen::new(&KEY_KEYS);
        while let Some(name) = self.next_key(&mut seen, faults)? {
            let next = self.next_value()?;
            let place = Some(next.location);
            match name {
                RecordKey::Known("sha256") => {
                    key.sha256 = self.text_of(next, faults)?.unwrap_or_default();
                    places.sha256 = place;
                }
                RecordKey::Known("id") => {
                    (key.id, places.id) = (self.text_of(next, faults)?, place);
                }
                RecordKey::Known(_) => {
                    (key.expires, places.expires) = (self.text_of(next, faults)?, place);
                }
                RecordKey::Reported => self.skip(&next.value)?,
            }
        }
        if !seen.has("sha256") {
            let expected = "`sha256`, the hash of the key";
            faults.add(start, &Mismatch::new("missing key `sha256`", expected));
        }
        placed.record.keys.push(key);
        placed.places.keys.push(places);
        Ok(())
    }

    /// Reads labels, which are for the operator's own tools.
    fn read_labels(
        &mut self,
        labels: PlacedValue<'t>,
        faults: &mut FileFaults<'_>,
    ) -> Result<(), Stop> {
        match labels.value {
            YamlValue::Mapping => {}
            YamlValue::Scalar(None) => return Ok(()),
            value => {
                let expected = "a mapping of names to texts, such as {team: shop}";
                faults.add(labels.location, &found(&value, expected));
                return self.skip(&value);
            }
        }
        let mut is_value = false;
        loop {
            let (event, location) = self.next()?;
            if matches!(event, Event::MappingEnd) {
                return Ok(());
            }
            let next = Self::value(event, location)?;
            if is_value {
                self.text_of(next, faults)?;
            } else if !matches!(next.value, YamlValue::Scalar(Some(_))) {
                return Err((location, Mismatch::new("no name", "the name of a label")));
            }
            is_value = !is_value;
        }
    }

    /// The text of a value; `None` if it is null. Reports a list or a mapping.
    fn text_of(
        &mut self,
        next: PlacedValue<'t>,
        faults: &mut FileFaults<'_>,
    ) -> Result<Option<Cow<'t, str>>, Stop> {
        match next.value {
            YamlValue::Scalar(text) => Ok(text),
            value => {
                faults.add(next.location, &found(&value, "text"));
                self.skip(&value)?;
                Ok(None)
            }
        }
    }

    fn flag(&mut self, next: &PlacedValue<'t>, faults: &mut FileFaults<'_>) -> Result<bool, Stop> {
        match &next.value {
            YamlValue::Scalar(Some(text)) if text == "true" => return Ok(true),
            YamlValue::Scalar(Some(text)) if text == "false" => return Ok(false),
            value => faults.add(next.location, &found(value, "true or false")),
        }
        self.skip(&next.value)?;
        Ok(false)
    }

    /// The next key of a mapping; `None` at its end.
    fn next_key(
        &mut self,
        seen: &mut Seen,
        faults: &mut FileFaults<'_>,
    ) -> Result<Option<RecordKey>, Stop> {
        let (event, location) = self.next()?;
        if matches!(event, Event::MappingEnd) {
            return Ok(None);
        }
        let YamlValue::Scalar(Some(name)) = Self::value(event, location)?.value else {
            return Err((location, Mismatch::new("no key", "a plain key")));
        };
        let Some(index) = seen.known.iter().position(|known| *known == name) else {
            let all = seen.known.join(", ");
            let expected = match suggest_key(&name, seen.known) {
                Some(near) => {
                    seen.mark(near);
                    format!("`{near}` (valid keys: {all})")
                }
                None => format!("one of {all}"),
            };
            let what = format!("unknown key `{}`", quote_value(&name));
            faults.add(location, &Mismatch::new(what, expected));
            return Ok(Some(RecordKey::Reported));
        };
        let known = seen.known[index];
        if seen.has(known) {
            let what = format!("duplicate key `{known}`");
            faults.add(location, &Mismatch::new(what, "it once in a mapping"));
            return Ok(Some(RecordKey::Reported));
        }
        seen.mark(known);
        Ok(Some(RecordKey::Known(known)))
    }

    /// The next item of a list; `None` at its end.
    fn next_item(&mut self) -> Result<Option<PlacedValue<'t>>, Stop> {
        let (event, location) = self.next()?;
        if matches!(event, Event::SequenceEnd) {
            return Ok(None);
        }
        Self::value(event, location).map(Some)
    }

    fn next_value(&mut self) -> Result<PlacedValue<'t>, Stop> {
        let (event, location) = self.next()?;
        Self::value(event, location)
    }

    fn value(event: Event<'t>, location: Location) -> Result<PlacedValue<'t>, Stop> {
        let tagged = || Err((location, Mismatch::new("a tag (`!`)", "a value without one")));
        let value = match event {
            Event::Scalar(_, _, _, Some(_))
            | Event::SequenceStart(_, Some(_))
            | Event::MappingStart(_, Some(_)) => return tagged(),
            Event::Scalar(text, ScalarStyle::Plain, _, _) => {
                let is_null = matches!(&*text, "" | "~" | "null" | "Null" | "NULL");
                YamlValue::Scalar((!is_null).then_some(text))
            }
            Event::Scalar(text, ..) => YamlValue::Scalar(Some(text)),
            Event::SequenceStart(..) => YamlValue::List,
            Event::MappingStart(..) => YamlValue::Mapping,
            Event::Alias(_) => {
                let alias = Mismatch::new("an alias (`*`)", "the value itself");
                return Err((location, alias));
            }
            _ => return Err((location, Mismatch::new("no value", "a value"))),
        };
        Ok(PlacedValue { value, location })
    }

    /// Skips the rest of a value.
    fn skip(&mut self, value: &YamlValue<'t>) -> Result<(), Stop> {
        let mut depth = match value {
            YamlValue::Scalar(_) => 0_usize,
            YamlValue::List | YamlValue::Mapping => 1,
        };
        while depth > 0 {
            match self.next()?.0 {
                Event::SequenceStart(..) | Event::MappingStart(..) => depth += 1,
                Event::SequenceEnd | Event::MappingEnd => depth -= 1,
                _ => {}
            }
        }
        Ok(())
    }

    fn next(&mut self) -> Result<(Event<'t>, Location), Stop> {
        match self.parser.next_event() {
            Some(Ok((event, span))) => Ok((event, location_of(span))),
            Some(Err(error)) => Err(syntax_fault(self.text, &error)),
            None => {
                let end = Location { line: 1, column: 1, width: 1 };
                Err((end, Mismatch::new("the end of the file", "a complete list")))
            }
        }
    }
}

fn location_of(span: Span) -> Location {
    let mut location = span_location(span);
    if location.width == usize::MAX {
        location.width = 1;
    }
    location
}

fn no_list() -> Mismatch {
    Mismatch::new("nothing", LIST)
}

fn found(value: &YamlValue<'_>, expected: &str) -> Mismatch {
    match value {
        YamlValue::Scalar(Some(text)) => mismatch(text, expected),
        YamlValue::Scalar(None) => Mismatch::new("nothing", expected),
        YamlValue::List => Mismatch::new("a list", expected),
        YamlValue::Mapping => Mismatch::new("a mapping", expected),
    }
}

/// The fault of a value that may be a key itself.
fn found_secret(value: &YamlValue<'_>, expected: &str) -> Mismatch {
    match value {
        YamlValue::Scalar(Some(_)) => Mismatch::new("text", expected),
        value => found(value, expected),
    }
}

/// A key of a mapping.
enum RecordKey {
    Known(&'static str),
    /// A key that was reported as a fault.
    Reported,
}

/// The keys of a mapping that were read.
struct Seen {
    known: &'static [&'static str],
    found: u8,
}

impl Seen {
    fn new(known: &'static [&'static str]) -> Self {
        Self { known, found: 0 }
    }

    fn bit(&self, key: &str) -> u8 {
        let index = self.known.iter().position(|known| *known == key);
        index.map_or(0, |index| 1 << index)
    }

    fn has(&self, key: &str) -> bool {
        self.found & self.bit(key) != 0
    }

    fn mark(&mut self, key: &str) {
        self.found |= self.bit(key);
    }
}
