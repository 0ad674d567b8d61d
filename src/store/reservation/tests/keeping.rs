//! What is kept: by whom, for how long, and where it goes.

use super::*;

fn stock(book: &Book<Caller>, limit: &Limit, key: Key, tokens: u32) -> Arc<Entry<Caller>> {
    let entry = book.entry(limit, key).unwrap();
    let fetching = fetch(entry.join(Caller::of(1), 100));
    assert!(fetching.complete(&reply(1 + tokens, 50, 100)).is_none());
    entry
}

fn swept(book: &Book<Caller>, ticks: u64) -> Vec<(u32, Millis)> {
    let mut out = Vec::new();
    book.sweep(ticks, |_| true, &mut out);
    out.iter().map(|give| (give.back.tokens, give.back.charged_at)).collect()
}

#[test]
fn what_nobody_uses_is_given_back_early() {
    let (book, limit) = (book(), limit(Reserve::Tokens(10)));
    let limit = Limit { quota: Quota::new(100, 60_000, 1), ..limit };
    let entry = stock(&book, &limit, KEY, 5);
    assert_eq!(swept(&book, 100), []);
    assert_eq!(swept(&book, 600), []);
    assert!(entry.take(1, 700).is_some(), "used once more");
    assert_eq!(swept(&book, 1_100), []);
    assert_eq!(swept(&book, 1_100 + IDLE - 1), []);
    assert_eq!(swept(&book, 1_100 + IDLE), [(4, START + 999)], "long before its sub-window ends");
    assert_eq!(entry.take(1, 701), None);
    assert_eq!(book.numbers().given_back, 4);
}

/// Until its server is there again.
#[test]
fn what_nobody_can_be_told_of_stays_and_can_be_spent() {
    let (book, limit) = (book(), limit(Reserve::Tokens(10)));
    let entry = stock(&book, &limit, KEY, 5);
    stock(&book, &limit, Key(8), 3);
    let mut out = Vec::new();
    for ticks in [100, 100 + IDLE, 100 + RETIRE] {
        book.sweep(ticks, |key| key != KEY, &mut out);
    }
    let given: Vec<_> = out.iter().map(|give| (give.key, give.back.tokens)).collect();
    assert_eq!(given, [(Key(8), 3)]);
    assert_eq!((book.numbers().entries, book.numbers().outstanding), (1, 5));
    assert!(entry.take(1, 101).is_some());
    assert_eq!(swept(&book, 101 + RETIRE), []);
    assert_eq!(swept(&book, 101 + RETIRE + IDLE), [(4, START + 999)]);
}

#[test]
fn what_can_be_spent_is_told_until_its_sub_window_ends() {
    let (book, limit) = (book(), limit(Reserve::Tokens(10)));
    let entry = stock(&book, &limit, KEY, 5);
    assert_eq!([101, 998, 999].map(|ticks| book.spendable(&limit, KEY, ticks)), [5, 5, 0]);
    let waiting = fetch(entry.join(Caller::of(9), 200));
    assert_eq!([201, 999].map(|ticks| book.spendable(&limit, KEY, ticks)), [5, 0], "in the pot");
    drop(waiting);
    assert_eq!(book.spendable(&limit, Key(8), 101), 0);
    assert_eq!(book.numbers().entries, 1, "none was made for it");
}

#[test]
fn who_is_not_seen_any_more_leaves_the_book() {
    let (book, limit) = (book(), limit(Reserve::Tokens(10)));
    let entry = stock(&book, &limit, KEY, 5);
    swept(&book, 100);
    swept(&book, 100 + IDLE);
    assert_eq!(book.numbers().entries, 1);
    swept(&book, 100 + RETIRE);
    assert_eq!(book.numbers(), Numbers { granted: 6, given_back: 5, ..Numbers::default() });
    assert!(matches!(entry.join(Caller::of(1), 101 + RETIRE), Joined::Gone(_)));
    assert!(!entry.give_back(START + 100, 1, 101));
    let another = book.entry(&limit, KEY).unwrap();
    assert!(!Arc::ptr_eq(&entry, &another));
}

#[test]
fn who_keeps_nothing_leaves_though_the_store_is_lost() {
    let (book, limit) = (book(), limit(Reserve::Tokens(10)));
    stock(&book, &limit, KEY, 5);
    book.entry(&limit, Key(KEY.0 + 1)).expect("room");
    for ticks in [100, 100 + RETIRE] {
        let mut out = Vec::new();
        book.sweep(ticks, |_| false, &mut out);
        assert!(out.is_empty());
    }
    assert_eq!(book.numbers().entries, 1);
    let back = swept(&book, 100 + RETIRE);
    assert_eq!(back.iter().map(|(tokens, _)| tokens).sum::<u32>(), 5);
}

#[test]
fn a_desk_finds_the_entry_that_took_the_place() {
    let book = Arc::new(book());
    let limit = limit(Reserve::Tokens(10));
    let desk = Desk::new(Arc::clone(&book));
    assert_eq!(desk.take(&limit, KEY, 1, 100), None);
    let fetching = fetch(desk.join(&limit, KEY, Caller::of(1), 100));
    assert!(fetching.complete(&reply(3, 50, 100)).is_none());
    let taken = desk.take(&limit, KEY, 1, 101).unwrap();
    assert!(desk.give_back(&limit, KEY, taken.now, 1, 102).is_some());
    swept(&book, 100);
    swept(&book, 100 + RETIRE);
    assert_eq!(book.numbers().entries, 0);
    assert_eq!(
        desk.take(&limit, KEY, 1, 101),
        None,
        "the desk still holds it, and it holds nothing"
    );
    let fetching = fetch(desk.join(&limit, KEY, Caller::of(1), 20_000));
    assert_eq!(book.numbers().entries, 1);
    assert!(fetching.complete(&reply(2, 50, 20_000)).is_none());
    assert!(desk.take(&limit, KEY, 1, 20_001).is_some());
}

#[test]
fn names_that_share_a_place_do_not_share_tokens() {
    let book = Arc::new(book());
    let limit = limit(Reserve::Tokens(10));
    let desk = Desk::new(Arc::clone(&book));
    stock(&book, &limit, KEY, 5);
    let other = Key(KEY.0 + SLOTS as u128);
    for _ in 0..2 {
        assert_eq!(desk.take(&limit, other, 1, 101), None);
        assert!(desk.take(&limit, KEY, 1, 101).is_some());
    }
}

/// A reload or a tier: the same record, another quota.
#[test]
fn tokens_of_one_quota_are_not_spent_under_another() {
    let (book, old) = (book(), limit(Reserve::Tokens(10)));
    stock(&book, &old, KEY, 5);
    let strict = Quota { strict: true, ..old.quota };
    for quota in [Quota::new(10, 6_000, 6), Quota::new(101, 6_000, 6), strict] {
        let new = Limit { quota, ..old.clone() };
        assert_eq!(Name::of(&new, KEY).record, Name::of(&old, KEY).record);
        assert_eq!(book.entry(&new, KEY).unwrap().take(1, 101), None);
    }
    let moved = Limit { index: 3, ..old };
    assert!(book.entry(&moved, KEY).unwrap().take(1, 101).is_some(), "only its place changed");
}

#[test]
fn the_book_has_its_bounds() {
    let book = Book::<Caller>::with_room(3);
    let limit = limit(Reserve::Auto);
    let made = (0..100_u128).filter_map(|key| book.entry(&limit, Key(key << 96))).count();
    assert_eq!((made, book.numbers().entries), (3, 3));
    book.drain(&mut Vec::new());
    assert_eq!(book.numbers().entries, 0);
    assert!(book.entry(&limit, KEY).is_none(), "it is closed");
}

#[test]
fn the_sweep_reaches_everybody() {
    let (book, limit) = (Book::<Caller>::with_room(1 << 12), limit(Reserve::Tokens(10)));
    let keys = (0..1_000_u128).map(Key);
    let entries: Vec<_> = keys.map(|key| stock(&book, &limit, key, 2)).take(60).collect();
    let mut out = Vec::new();
    for ticks in [100, 100 + IDLE, 100 + RETIRE] {
        book.sweep(ticks, |_| true, &mut out);
    }
    assert_eq!((out.len(), book.numbers().entries), (entries.len(), 0));
}

#[test]
fn shutdown_gives_everything_back() {
    let (book, limit) = (book(), limit(Reserve::Tokens(10)));
    stock(&book, &limit, KEY, 5);
    let busy = stock(&book, &limit, Key(8), 3);
    let fetching = fetch(busy.join(Caller::of(4), 101));
    let mut out = Vec::new();
    book.drain(&mut out);
    assert_eq!(out.iter().map(|give| give.back.tokens).sum::<u32>(), 5);
    assert_eq!(book.numbers().outstanding, 3, "in flight");
    assert!(fetching.complete(&reply(2, 40, 102)).is_none());
    book.drain(&mut out);
    assert_eq!(out.iter().map(|give| give.back.tokens).sum::<u32>(), 6);
    assert_eq!((book.numbers().outstanding, book.numbers().entries), (0, 0));
}

#[test]
fn what_the_operator_reset_is_not_refunded() {
    let (book, limit) = (book(), limit(Reserve::Tokens(10)));
    let entry = stock(&book, &limit, KEY, 5);
    let other = stock(&book, &limit, Key(8), 5);
    let raised = Limit { quota: Quota::new(200, 6_000, 6), ..limit.clone() };
    let under_another = stock(&book, &raised, KEY, 4);
    book.forget(Name::of(&limit, KEY).record);
    assert!(entry.take(1, 101).is_none() && under_another.take(1, 101).is_none());
    assert!(!entry.give_back(START + 100, 1, 101));
    assert!(other.take(1, 101).is_some());
    assert_eq!(book.numbers().forgotten, 9);
    // In flight: who waited is served, what is beyond that is discarded.
    let caller = Caller::of(1);
    let fetching = fetch(entry.join(caller.clone(), 102));
    book.forget(Name::of(&limit, KEY).record);
    assert!(fetching.complete(&reply(11, 40, 103)).is_none());
    assert!(caller.is_granted());
    assert_eq!(entry.take(1, 104), None);
    assert_eq!(book.numbers().forgotten, 19);
    assert_eq!(swept(&book, 100), []);
}

/// A 304 costs nothing: the token is there again.
#[test]
fn a_token_comes_back_while_its_sub_window_lasts() {
    let (book, limit) = (book(), limit(Reserve::Tokens(10)));
    let entry = stock(&book, &limit, KEY, 1);
    let taken = entry.take(1, 200).unwrap();
    assert_eq!((taken.now, taken.remaining), (START + 200, 50));
    assert_eq!(entry.take(1, 201), None);
    assert!(entry.give_back(taken.now, 1, 300));
    assert!(entry.take(1, 301).is_some());
    assert!(!entry.give_back(taken.now, 1, 1_000), "its sub-window is over");
    assert!(!entry.give_back(START - 1, 1, 301), "of the one before");
    // While a fetch is in flight it waits with the line.
    let caller = Caller::of(1);
    let fetching = fetch(entry.join(caller.clone(), 302));
    assert!(entry.give_back(taken.now, 1, 303));
    fetching.fail(Failure::Timeout, 304);
    assert!(caller.is_granted());
}

/// A grant of the next sub-window does not take in what was spent in the last.
#[test]
fn a_token_of_the_last_sub_window_does_not_come_back_into_the_next() {
    let (book, limit) = (book(), limit(Reserve::Tokens(10)));
    let entry = stock(&book, &limit, KEY, 1);
    let taken = entry.take(1, 998).unwrap();
    let fetching = fetch(entry.join(Caller::of(1), 1_001));
    assert!(fetching.complete(&reply(3, 50, 1_001)).is_none());
    assert!(!entry.give_back(taken.now, 1, 1_002));
    let told = entry.told();
    assert_eq!((told.end, told.deadline, told.remaining), (START + 2_000, 1_999, 50));
}

#[test]
fn a_refund_that_did_not_arrive_is_lost() {
    let (book, limit) = (book(), limit(Reserve::Tokens(10)));
    stock(&book, &limit, KEY, 5);
    let mut out = Vec::new();
    book.drain(&mut out);
    book.lose(&out[0].back);
    let numbers = book.numbers();
    assert_eq!((numbers.given_back, numbers.lost), (0, 5));
}

#[test]
fn entries_are_small() {
    assert!(size_of::<Entry<Caller>>() <= 384, "{}", size_of::<Entry<Caller>>());
}
