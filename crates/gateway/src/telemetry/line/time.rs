//! [`TimeCache`]: the time of a line as text. Lines in one second share all but the milliseconds.

use std::time::Duration;

use tidegate_base::time::{StoreTime, UnixSeconds};

use super::values::last_three_digits;

/// The last second that RFC 3339 can express, 9999-12-31T23:59:59Z.
pub(super) const LAST_SECOND: UnixSeconds = UnixSeconds::from_secs(253_402_300_799);

/// The formatted second of the last line.
#[derive(Debug)]
pub(super) struct TimeCache {
    second: UnixSeconds,
    /// `2023-11-14T22:13:20.`
    text: [u8; 20],
}

impl Default for TimeCache {
    fn default() -> Self {
        Self { second: UnixSeconds::ZERO, text: *b"1970-01-01T00:00:00." }
    }
}

impl TimeCache {
    /// Appends `time` in UTC by RFC 3339 with milliseconds.
    pub(super) fn push_rfc3339(&mut self, time: StoreTime, out: &mut Vec<u8>) {
        out.extend_from_slice(self.second(time));
        out.extend_from_slice(&last_three_digits((time.as_unix_ms() % 1000) as u32));
        out.push(b'Z');
    }

    /// Appends `time` as nginx and Apache write it: `14/Nov/2023:22:13:20 +0000`.
    pub(super) fn push_common(&mut self, time: StoreTime, out: &mut Vec<u8>) {
        const MONTHS: [&[u8; 3]; 12] = [
            b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov",
            b"Dec",
        ];
        let text = self.second(time);
        let month = usize::from(text[5] - b'0') * 10 + usize::from(text[6] - b'0');
        out.extend_from_slice(&text[8..10]);
        out.push(b'/');
        out.extend_from_slice(MONTHS[(month + 11) % 12]);
        out.push(b'/');
        out.extend_from_slice(&text[..4]);
        out.push(b':');
        out.extend_from_slice(&text[11..19]);
        out.extend_from_slice(b" +0000");
    }

    /// The second of `time`.
    fn second(&mut self, time: StoreTime) -> &[u8; 20] {
        let second = UnixSeconds::of(time).min(LAST_SECOND);
        if second != self.second {
            let at = std::time::UNIX_EPOCH + Duration::from_secs(second.as_secs());
            let text = humantime::format_rfc3339_seconds(at).to_string();
            // `2023-11-14T22:13:20Z`: the cached text ends in `.` instead of `Z`.
            if let Some(text) = text.as_bytes().first_chunk::<19>() {
                self.text[..19].copy_from_slice(text);
                self.second = second;
            }
        }
        &self.text
    }
}
