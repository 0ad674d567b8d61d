//! A ticket of the waiting room is read only as it was issued, for the token that it was issued
//! for. Other bytes are refused, and their sender gets a new ticket.
#![no_main]

use std::sync::{Arc, LazyLock};

use libfuzzer_sys::fuzz_target;
use tidegate::{
    clock::StoreTime,
    secret::{KeySecret, SharedSecret},
    throttle::waiting_room::{
        HeadStart, QueueTime, RoomSettings, UnixSecond, WaitingRoom,
        ticket::{Ticket, TicketKey},
    },
    time::Millis,
};

const NOW: StoreTime = StoreTime::from_unix_ms(1_700_000_010_000);

/// A room whose keys are others than those of the tickets. One for all inputs, because it has a
/// filter of 1 MiB.
static ROOM: LazyLock<Arc<WaitingRoom>> = LazyLock::new(|| {
    let settings = RoomSettings { ticket_ttl: Millis::from_mins(1) };
    WaitingRoom::new(settings, &SharedSecret::from_namespace("fuzz"), NOW)
});

/// Bytes that are not what the key wrote.
fn assert_refused(key: &TicketKey, text: &[u8], holder: u64) {
    assert_eq!(key.open(text, holder).ok(), None, "a forged ticket was read");
}

fuzz_target!(|input: (u64, u64, u64, u32, Vec<(u8, u8)>, Vec<u8>)| {
    let (holder, other, micros, counted_at, changes, text) = input;
    let key = TicketKey::new(KeySecret(0x5eed, 0xfeed));
    let ticket = Ticket {
        queued_at: QueueTime::from_micros(micros),
        counted_at: UnixSecond::from_secs(counted_at.into()),
    };
    let issued = key.seal(ticket, holder);
    assert_eq!(key.open(&issued, holder), Ok(ticket));
    if holder != other {
        assert_refused(&key, &issued, other);
    }
    let mut changed = issued.to_vec();
    for (at, byte) in changes {
        let at = usize::from(at) % (changed.len() + 1);
        match changed.get_mut(at) {
            Some(old) => *old = byte,
            None => changed.push(byte),
        }
    }
    if changed != issued {
        assert_refused(&key, &changed, holder);
    }
    if text != issued {
        assert_refused(&key, &text, holder);
    }

    for sent in [&text, &changed] {
        let place = ROOM.ask(holder, Some(sent), HeadStart::default(), NOW);
        assert!(!place.is_turn(), "forged bytes were admitted");
        assert!(place.is_new() && place.fault().is_some() && place.place >= 1);
        let second = Millis::from_secs(1);
        assert!(place.retry_after >= second && place.expected_wait >= second);
        assert!(place.ticket().len() == place.ticket.len());
    }
});
