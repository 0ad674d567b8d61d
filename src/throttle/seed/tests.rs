use proptest::prelude::*;

use super::*;

proptest! {
    #[test]
    fn a_seed_is_read_as_it_was_written(
        secret in any::<(u64, u64)>(),
        positions in any::<[u8; 32]>(),
        at in 0..96_usize,
        byte in any::<u8>(),
    ) {
        let seed = Seed { secret, positions };
        let text = seed.to_text();
        prop_assert_eq!(text.len(), 96);
        prop_assert_eq!(Seed::from_text(text.as_bytes()), Some(seed));
        prop_assert_eq!(Seed::from_text(text.to_uppercase().as_bytes()), Some(seed));
        prop_assert_eq!(Seed::from_text(&text.as_bytes()[..at]), None);
        prop_assert_eq!(Seed::from_text(format!("{text}0").as_bytes()), None);
        let mut other = text.into_bytes();
        other[at] = byte;
        prop_assert_eq!(Seed::from_text(&other).is_some(), byte.is_ascii_hexdigit());
    }
}

#[test]
fn seeds_are_random_and_not_shown() {
    let [one, other] = [Seed::random().unwrap(), Seed::random().unwrap()];
    assert!(one != other);
    assert_eq!(format!("{one:?}"), "Seed(..)");
    assert_ne!(one.sips()[0].key(), one.sips()[1].key());
}
