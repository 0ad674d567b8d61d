//! The trace context of a request: the header `traceparent` of W3C Trace Context.

/// The length of a `traceparent` of version 00, in bytes.
const LEN: usize = 55;

/// The ids of a span and of its trace. Neither is 0.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SpanContext {
    /// The trace.
    pub trace_id: u128,
    /// The span.
    pub span_id: u64,
}

/// The value of `traceparent`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct TraceParent {
    /// The span of the sender.
    pub context: SpanContext,
    /// True if the sender records its spans.
    pub is_sampled: bool,
}

impl TraceParent {
    /// The range of the span's id in [`Self::format`].
    const SPAN_ID: std::ops::Range<usize> = 36..52;

    /// Parses a value of version 00. A later version is read as version 00. `None` if the value is
    /// invalid.
    pub fn parse(value: &[u8]) -> Option<Self> {
        let known = value.get(..LEN)?;
        let version = hex(&known[..2])?;
        let is_complete = match version {
            0 => value.len() == LEN,
            0xff => false,
            _ => value.get(LEN).is_none_or(|next| *next == b'-'),
        };
        let has_dashes = [2, 35, 52].iter().all(|place| known[*place] == b'-');
        if !is_complete || !has_dashes {
            return None;
        }
        let trace_id = hex(&known[3..35])?;
        let span_id = hex(&known[Self::SPAN_ID])? as u64;
        let flags = hex(&known[53..])?;
        let context = SpanContext { trace_id, span_id };
        (trace_id != 0 && span_id != 0).then_some(Self { context, is_sampled: flags & 1 == 1 })
    }

    /// The value, of version 00.
    pub fn format(self) -> [u8; LEN] {
        let mut value = *b"00-00000000000000000000000000000000-0000000000000000-00";
        value[3..35].copy_from_slice(&self.context.trace_id_text());
        value[Self::SPAN_ID].copy_from_slice(&span_id_text(self.context.span_id));
        value[LEN - 1] = if self.is_sampled { b'1' } else { b'0' };
        value
    }
}

impl SpanContext {
    /// The trace's id: 32 hexadecimal digits.
    pub fn trace_id_text(self) -> [u8; 32] {
        digits(self.trace_id)
    }
}

/// A span's id: 16 hexadecimal digits.
fn span_id_text(span_id: u64) -> [u8; 16] {
    digits(span_id.into())
}

fn digits<const N: usize>(number: u128) -> [u8; N] {
    std::array::from_fn(|place| {
        let digit = number >> (4 * (N - 1 - place)) & 15;
        b"0123456789abcdef"[digit as usize]
    })
}

/// Parses at most 32 hexadecimal digits in lower case.
fn hex(text: &[u8]) -> Option<u128> {
    text.iter().try_fold(0, |number, byte| {
        let digit = match byte {
            b'0'..=b'9' => byte - b'0',
            b'a'..=b'f' => byte - b'a' + 10,
            _ => return None,
        };
        Some(number << 4 | u128::from(digit))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const VALUE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn the_example_of_the_specification_is_read() {
        let parent = TraceParent::parse(VALUE.as_bytes()).unwrap();
        assert_eq!(parent.context.trace_id, 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736);
        assert_eq!(parent.context.span_id, 0x00f0_67aa_0ba9_02b7);
        assert!(parent.is_sampled);
        assert_eq!(&parent.format(), VALUE.as_bytes());
        assert_eq!(&VALUE[TraceParent::SPAN_ID], "00f067aa0ba902b7");
    }

    #[test]
    fn versions_and_flags_are_those_of_the_specification() {
        let parse = |value: &str| TraceParent::parse(value.as_bytes());
        let later = |value: &str| VALUE.replacen("00-", value, 1);
        assert!(parse(&later("cc-")).is_some());
        assert!(parse(&(later("cc-") + "-what-comes")).is_some());
        assert!(!parse(&VALUE.replace("-01", "-fe")).unwrap().is_sampled);
        assert!(parse(&VALUE.replace("-01", "-ff")).unwrap().is_sampled);
        let invalid = [
            String::new(),
            later("ff-"),
            later("0-"),
            later("cc-") + "x",
            VALUE.to_owned() + "-00",
            VALUE.to_owned() + " ",
            VALUE.to_uppercase(),
            VALUE.replace("-01", "-1"),
            VALUE.replace("-01", "-0x"),
            VALUE.replace('-', "_"),
            VALUE.replace("4bf92f3577b34da6a3ce929d0e0e4736", &"0".repeat(32)),
            VALUE.replace("00f067aa0ba902b7", &"0".repeat(16)),
        ];
        for value in invalid {
            assert!(parse(&value).is_none(), "{value}");
        }
    }

    proptest! {
        #[test]
        fn a_formatted_value_is_read_as_it_was(
            trace_id in 1_u128.., span_id in 1_u64.., is_sampled: bool,
        ) {
            let context = SpanContext { trace_id, span_id };
            let parent = TraceParent { context, is_sampled };
            let flags = u8::from(is_sampled);
            let text = format!("00-{trace_id:032x}-{span_id:016x}-{flags:02x}");
            prop_assert_eq!(&parent.format(), text.as_bytes());
            prop_assert_eq!(TraceParent::parse(text.as_bytes()), Some(parent));
        }

        /// Exactly the values that the specification's grammar allows are accepted.
        #[test]
        fn values_are_accepted_by_the_grammar(
            value in "[0-9a-fA-F]{2}[-_][0-9a-f]{31,33}-[0-9a-fg]{16}-[0-9a-f]{1,3}(-x|x|-)?"
        ) {
            let parts: Vec<&str> = value.split('-').collect();
            let lower = |part: &str| part.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
            let is_known = parts.len() >= 4
                && [2, 32, 16, 2].iter().zip(&parts).all(|(length, part)| part.len() == *length && lower(part))
                && parts[0] != "ff"
                && parts[1].contains(|c| c != '0')
                && parts[2].contains(|c| c != '0');
            let expected = is_known && (parts.len() == 4 || parts[0] != "00");
            prop_assert_eq!(TraceParent::parse(value.as_bytes()).is_some(), expected);
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(
            mut value in proptest::collection::vec(any::<u8>(), 0..80), place in 0..60_usize, byte: u8,
        ) {
            TraceParent::parse(&value);
            value = VALUE.into();
            if let Some(old) = value.get_mut(place) {
                *old = byte;
            }
            if let Some(parent) = TraceParent::parse(&value) {
                let formatted = parent.format();
                prop_assert_eq!(&formatted[2..52], &value[2..52]);
            }
        }
    }
}
