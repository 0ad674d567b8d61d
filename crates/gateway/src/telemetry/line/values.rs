//! Writes the values of an access line: numbers, times, addresses, costs and texts.

use std::{
    net::{IpAddr, Ipv6Addr},
    time::Duration,
};

use super::LimitCost;

/// The last three decimal digits.
pub(super) fn last_three_digits(number: u32) -> [u8; 3] {
    let digit = |value: u32| b'0' + (value % 10) as u8;
    [digit(number / 100), digit(number / 10), digit(number)]
}

pub(super) fn push_number(number: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

/// Appends costs as a JSON object.
pub(super) fn push_costs(costs: &[LimitCost<'_>], out: &mut Vec<u8>) {
    out.push(b'{');
    for (index, LimitCost { limit, units }) in costs.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        out.push(b'"');
        push_text(limit.as_bytes(), out);
        out.extend_from_slice(b"\":");
        push_number(*units, out);
    }
    out.push(b'}');
}

/// Appends milliseconds with three decimals.
pub(super) fn push_millis(time: Duration, out: &mut Vec<u8>) {
    if time.is_zero() {
        return out.extend_from_slice(b"0.000");
    }
    let seconds = time.as_secs().saturating_mul(1_000_000);
    let micros = seconds.saturating_add(time.subsec_micros().into());
    push_number(micros / 1000, out);
    let [a, b, c] = last_three_digits((micros % 1000) as u32);
    out.extend_from_slice(&[b'.', a, b, c]);
}

/// Appends 32 hexadecimal digits.
pub(super) fn push_hex(number: u128, out: &mut Vec<u8>) {
    let digits: [u8; 32] = std::array::from_fn(|index| {
        let digit = (number >> (124 - 4 * index)) as usize & 15;
        b"0123456789abcdef"[digit]
    });
    out.extend_from_slice(&digits);
}

pub(super) fn push_address(address: IpAddr, out: &mut Vec<u8>) {
    match address {
        IpAddr::V4(address) => {
            // Each octet is written as four bytes; the next octet overwrites the unused ones.
            let (mut text, mut length) = ([0; 16], 0);
            for octet in address.octets() {
                let (digits, count) = OCTETS[usize::from(octet)];
                text[length..length + 4].copy_from_slice(&digits);
                length += usize::from(count);
            }
            // The last octet has no dot.
            out.extend_from_slice(&text[..length - 1]);
        }
        IpAddr::V6(address) => push_ipv6(address, out),
    }
}

/// Each octet's digits and a dot, and the number of these bytes.
static OCTETS: [([u8; 4], u8); 256] = {
    let mut texts = [([0; 4], 0); 256];
    let mut octet = 0;
    while octet < 256 {
        let (hundreds, tens, ones) =
            (b'0' + (octet / 100) as u8, b'0' + (octet / 10 % 10) as u8, b'0' + (octet % 10) as u8);
        texts[octet] = match octet {
            0..10 => ([ones, b'.', 0, 0], 2),
            10..100 => ([tens, ones, b'.', 0], 3),
            _ => ([hundreds, tens, ones, b'.'], 4),
        };
        octet += 1;
    }
    texts
};

/// Appends the address in the form of RFC 5952: the longest run of zero groups is replaced by `::`.
fn push_ipv6(address: Ipv6Addr, out: &mut Vec<u8>) {
    if address.to_ipv4_mapped().is_some() {
        out.extend_from_slice(address.to_string().as_bytes());
        return;
    }
    let groups = address.segments();
    let (mut longest_zeros, mut index) = (0..0, 0);
    while index < groups.len() {
        let zeros = groups[index..].iter().take_while(|group| **group == 0).count();
        if zeros > 1 && zeros > longest_zeros.len() {
            longest_zeros = index..index + zeros;
        }
        index += zeros.max(1);
    }
    // The buffer is filled with colons, and `length` is advanced over them. Each group is followed
    // by a colon; the last one is removed.
    let (mut text, mut length) = ([b':'; 42], 0);
    index = 0;
    while index < groups.len() {
        if index == longest_zeros.start && !longest_zeros.is_empty() {
            length = if index == 0 { 2 } else { length + 1 };
            index = longest_zeros.end;
            continue;
        }
        let group = groups[index];
        let digits = (16 - (group | 1).leading_zeros() as usize).div_ceil(4);
        for digit in (0..digits).rev() {
            text[length] = b"0123456789abcdef"[usize::from(group >> (4 * digit)) & 15];
            length += 1;
        }
        length += 1;
        index += 1;
    }
    // No colon follows the last group, unless the address ends in `::`.
    length -= usize::from(longest_zeros.end != groups.len() || longest_zeros.is_empty());
    out.extend_from_slice(&text[..length]);
}

/// Appends the content of a JSON string. Invalid UTF-8 is replaced.
pub(super) fn push_text(bytes: &[u8], out: &mut Vec<u8>) {
    if let Some(block) = short_block(bytes) {
        if is_plain_block(&block) {
            // Copied with its padding: a copy of a fixed length is cheaper.
            out.extend_from_slice(&block);
            out.truncate(out.len() - (block.len() - bytes.len()));
            return;
        }
    } else if is_plain(bytes) {
        return out.extend_from_slice(bytes);
    }
    push_escaped(bytes, out);
}

/// `bytes`, padded with zeros in ASCII; `None` if they are longer than a block.
fn short_block(bytes: &[u8]) -> Option<[u8; 16]> {
    let (length, mut block) = (bytes.len(), [b'0'; 16]);
    match (bytes.first_chunk::<8>(), bytes.last_chunk::<8>()) {
        (Some(first), Some(last)) => {
            block[..8].copy_from_slice(first);
            // Overlaps the first part.
            block.get_mut(length - 8..length)?.copy_from_slice(last);
        }
        _ => block.iter_mut().zip(bytes).for_each(|(byte, from)| *byte = *from),
    }
    Some(block)
}

/// True if `bytes` are ASCII and need no escaping.
pub(super) fn is_plain(bytes: &[u8]) -> bool {
    if let Some(block) = short_block(bytes) {
        return is_plain_block(&block);
    }
    let (blocks, rest) = bytes.as_chunks::<16>();
    // The last block overlaps the one before it.
    let last = bytes.last_chunk::<16>().filter(|_| !rest.is_empty());
    blocks.iter().chain(last).all(is_plain_block)
}

/// As [`is_plain`]. Without a branch for each byte, so that the compiler tests all of them at once.
fn is_plain_block(block: &[u8; 16]) -> bool {
    // As a signed number, a byte beyond ASCII is negative.
    let special = |byte: u8| byte.cast_signed() < 0x20 || byte == b'"' || byte == b'\\';
    !block.iter().fold(false, |found, byte| found | special(*byte))
}

#[cold]
fn push_escaped(bytes: &[u8], out: &mut Vec<u8>) {
    for chunk in bytes.utf8_chunks() {
        let valid = chunk.valid().as_bytes();
        let mut from = 0;
        for (index, &byte) in valid.iter().enumerate() {
            // A terminal that shows the log would act on C1 controls (U+0080 to U+009F).
            let c1 = valid.get(index + 1).filter(|next| byte == 0xc2 && **next < 0xa0);
            if c1.is_none() && byte >= 0x20 && byte != b'"' && byte != b'\\' {
                continue;
            }
            out.extend_from_slice(&valid[from..index]);
            from = index + 1 + usize::from(c1.is_some());
            let control = *c1.unwrap_or(&byte);
            match control {
                b'"' | b'\\' => out.extend_from_slice(&[b'\\', control]),
                b'\n' => out.extend_from_slice(b"\\n"),
                b'\r' => out.extend_from_slice(b"\\r"),
                b'\t' => out.extend_from_slice(b"\\t"),
                _ => {
                    let digit = b"0123456789abcdef"[usize::from(control & 15)];
                    out.extend_from_slice(&[b'\\', b'u', b'0', b'0', b'0' + (control >> 4), digit]);
                }
            }
        }
        out.extend_from_slice(&valid[from..]);
        if !chunk.invalid().is_empty() {
            out.extend_from_slice("\u{fffd}".as_bytes());
        }
    }
}
