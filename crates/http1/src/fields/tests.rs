use super::*;

#[test]
fn lookup_ignores_case_and_keeps_the_order() {
    let fields: Fields = [("A", "1"), ("b", "2"), ("a", "3")].into_iter().collect();
    assert_eq!(fields.get("a"), Some(&b"1"[..]));
    assert_eq!(fields.get_all("A").collect::<Vec<_>>(), [b"1", b"3"]);
    assert_eq!(fields.get_all("A").next_back(), Some(&b"3"[..]));
    assert_eq!((fields.len(), fields.contains("B"), fields.contains("c")), (3, true, false));
}

#[test]
fn set_replaces_a_field_in_place() {
    let mut fields: Fields = [("Host", "a"), ("b", "2")].into_iter().collect();
    fields.set("host", "other");
    fields.set("c", "3");
    let mut out = Vec::new();
    fields.write_to(&mut out, |_| true);
    assert_eq!(out, b"host: other\r\nb: 2\r\nc: 3\r\n");
}

#[test]
fn the_first_host_is_found_after_changes() {
    let mut fields: Fields = [("a", "1"), ("Host", "one")].into_iter().collect();
    fields.mark_host();
    fields.push("host", "two");
    assert_eq!(fields.host(), Some(&b"one"[..]));
    assert_eq!(fields.clone().host(), fields.host());
    fields.remove("a");
    assert_eq!(fields.host(), Some(&b"one"[..]));
    fields.mark_host();
    assert_eq!(fields.host(), Some(&b"two"[..]));
    fields.set("host", "three");
    assert_eq!(fields.host(), fields.get("host"));
    fields.remove("host");
    assert_eq!(fields.host(), None);
}

#[test]
fn short_lists_are_pooled_and_long_ones_freed() {
    let fields: Fields = [("a", "1")].into_iter().collect();
    let address = fields.bytes.as_ptr();
    drop(fields);
    let again = Fields::new();
    assert_eq!((again.bytes.as_ptr(), again.len(), again.bytes()), (address, 0, &b""[..]));
    let mut long = Fields::new();
    long.push("a", "1".repeat(MAX_POOLED));
    drop((long, Fields::default()));
    FREE.with_borrow(|free| {
        assert!(free.iter().all(|(bytes, _)| bytes.capacity() <= MAX_POOLED));
        assert!(free.iter().all(|(_, spans)| spans.capacity() >= INITIAL_FIELDS));
    });
}

#[test]
fn write_to_writes_only_kept_fields() {
    let fields: Fields = [("a", "1"), ("b", "2"), ("c", "3"), ("d", "4")].into_iter().collect();
    let mut out = Vec::new();
    fields.write_to(&mut out, |name| name != b"b");
    assert_eq!(out, b"a: 1\r\nc: 3\r\nd: 4\r\n");
    out.clear();
    fields.write_to(&mut out, |_| false);
    assert!(out.is_empty());
}
