//! Header fields as they came: places in one buffer, looked up by name.

use std::{cell::RefCell, ops::Range};

use super::buffer::{Buffer, Pooled, PooledVec};

/// Where one field stands.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) name: u32,
    pub(super) name_length: u32,
    pub(super) value: u32,
    pub(super) value_length: u32,
    /// Where its line ends, after CR LF; 0 where the line is not exactly `name: value` CR LF.
    pub(super) end: u32,
}

/// Places of the fields of one message.
pub(super) type Places = PooledVec<Place>;

/// What most messages have fewer fields than.
pub(super) const USUAL_FIELDS: usize = 16;

thread_local! {
    static FREE: RefCell<Vec<Vec<Place>>> = const { RefCell::new(Vec::new()) };
}

impl Pooled for Place {
    const MAX_POOLED: usize = 128;

    fn with_free<R>(work: impl FnOnce(&mut Vec<Vec<Self>>) -> R) -> Option<R> {
        FREE.try_with(|free| work(&mut free.borrow_mut())).ok()
    }
}

/// The header fields of one message, in their order. Names keep their case and are compared without it;
/// values are without the white space around them.
#[derive(Clone, Debug, Default)]
pub struct Fields {
    bytes: Buffer,
    places: Places,
}

impl Fields {
    /// No fields yet, and space for some short ones.
    pub fn new() -> Self {
        let places = Places::with_capacity(USUAL_FIELDS);
        Self { bytes: Buffer::with_capacity(256), places }
    }

    pub(super) fn of(bytes: Buffer, places: Places) -> Self {
        Self { bytes, places }
    }

    /// The bytes of the message that the fields stand in.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Forgets all fields.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.places.clear();
    }

    /// Adds a field at the end. Both must be what a field may be made of: they are written as they are.
    pub fn push(&mut self, name: &str, value: impl AsRef<[u8]>) {
        let value = value.as_ref();
        let start = self.bytes.len() as u32;
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.extend_from_slice(b": ");
        self.bytes.extend_from_slice(value);
        self.bytes.extend_from_slice(b"\r\n");
        self.places.push(Place {
            name: start,
            name_length: name.len() as u32,
            value: start + name.len() as u32 + 2,
            value_length: value.len() as u32,
            end: self.bytes.len() as u32,
        });
    }

    /// Adds a field whose value is a number.
    pub fn push_number(&mut self, name: &str, number: u64) {
        self.push(name, itoa::Buffer::new().format(number));
    }

    /// Gives the first field of this name another value; adds it if there is none.
    pub fn set(&mut self, name: &str, value: impl AsRef<[u8]>) {
        let found = self.places.iter().position(|place| self.is_named(place, name));
        self.push(name, value);
        if let Some(found) = found {
            self.places.swap_remove(found);
        }
    }

    /// The names and values, in their order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&[u8], &[u8])> {
        self.places.iter().map(|place| (self.name(place), self.value(place)))
    }

    /// The values of all fields of this name, in their order.
    pub fn get_all<N: AsRef<str>>(
        &self,
        name: N,
    ) -> impl DoubleEndedIterator<Item = &[u8]> + use<'_, N> {
        let named = self.places.iter().filter(move |place| self.is_named(place, name.as_ref()));
        named.map(|place| self.value(place))
    }

    /// The value of the first field of this name.
    pub fn get(&self, name: impl AsRef<str>) -> Option<&[u8]> {
        let name = name.as_ref();
        let place = self.places.iter().find(|place| self.is_named(place, name))?;
        Some(self.value(place))
    }

    /// Whether there is a field of this name.
    pub fn contains(&self, name: impl AsRef<str>) -> bool {
        self.get(name).is_some()
    }

    /// Writes the fields that `keep` wants to `out`, each as a line with its end. Neighbours that stand
    /// in one piece are copied as one.
    pub fn write_to(&self, out: &mut Vec<u8>, mut keep: impl FnMut(&[u8], &[u8]) -> bool) {
        let mut run: Range<usize> = 0..0;
        for place in self.places.iter() {
            let (name, value) = (self.name(place), self.value(place));
            if !keep(name, value) {
                continue;
            }
            let start = place.name as usize;
            if place.end == 0 || start != run.end {
                out.extend_from_slice(&self.bytes[run]);
                run = start..start;
            }
            if place.end == 0 {
                out.extend_from_slice(name);
                out.extend_from_slice(b": ");
                out.extend_from_slice(value);
                out.extend_from_slice(b"\r\n");
            } else {
                run.end = place.end as usize;
            }
        }
        out.extend_from_slice(&self.bytes[run]);
    }

    fn name(&self, place: &Place) -> &[u8] {
        &self.bytes[place.name as usize..][..place.name_length as usize]
    }

    fn value(&self, place: &Place) -> &[u8] {
        &self.bytes[place.value as usize..][..place.value_length as usize]
    }

    #[inline]
    fn is_named(&self, place: &Place, name: &str) -> bool {
        place.name_length as usize == name.len()
            && self.name(place).eq_ignore_ascii_case(name.as_bytes())
    }
}

impl<N: AsRef<str>, V: AsRef<[u8]>> FromIterator<(N, V)> for Fields {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(fields: I) -> Self {
        let mut all = Self::default();
        for (name, value) in fields {
            all.push(name.as_ref(), value);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_without_case_and_in_their_order() {
        let fields: Fields = [("A", "1"), ("b", "2"), ("a", "3")].into_iter().collect();
        assert_eq!(fields.get("a"), Some(&b"1"[..]));
        assert_eq!(fields.get_all("A").collect::<Vec<_>>(), [b"1", b"3"]);
        assert_eq!(fields.get_all("A").next_back(), Some(&b"3"[..]));
        assert_eq!((fields.len(), fields.contains("B"), fields.contains("c")), (3, true, false));
    }

    #[test]
    fn a_value_is_replaced_where_it_stands() {
        let mut fields: Fields = [("Host", "a"), ("b", "2")].into_iter().collect();
        fields.set("host", "other");
        fields.set("c", "3");
        let mut out = Vec::new();
        fields.write_to(&mut out, |_, _| true);
        assert_eq!(out, b"host: other\r\nb: 2\r\nc: 3\r\n");
    }

    #[test]
    fn only_what_is_wanted_is_written() {
        let fields: Fields = [("a", "1"), ("b", "2"), ("c", "3"), ("d", "4")].into_iter().collect();
        let mut out = Vec::new();
        fields.write_to(&mut out, |name, _| name != b"b");
        assert_eq!(out, b"a: 1\r\nc: 3\r\nd: 4\r\n");
        out.clear();
        fields.write_to(&mut out, |_, _| false);
        assert!(out.is_empty());
    }
}
