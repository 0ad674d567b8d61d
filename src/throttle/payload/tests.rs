use bloomfilter::Bloom;
use proptest::prelude::*;

use super::*;
use crate::throttle::{Filter, geometry::Sizing};

const NOW: u64 = 1_700_000_040_000;

fn geometry() -> Geometry {
    Geometry::new(&Sizing { capacity: 500, false_positive: 0.001, memory: 30 * 60_000 }).unwrap()
}

fn seed() -> Seed {
    Seed { secret: (1, 2), positions: std::array::from_fn(|i| i as u8) }
}

fn packed(parts: &[&[u8]]) -> Vec<u8> {
    let mut packed = GzEncoder::new(vec![GZIP], Compression::fast());
    for part in parts {
        packed.write_all(part).unwrap();
    }
    packed.finish().unwrap()
}

fn read(payload: &[u8]) -> Result<Vec<u8>, Refusal> {
    decode(&geometry(), &seed(), payload)
}

/// The crate's own bytes, whatever the flag.
fn unflagged(payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    match payload[0] {
        PLAIN => bytes.extend_from_slice(&payload[1..]),
        _ => _ = GzDecoder::new(&payload[1..]).read_to_end(&mut bytes).unwrap(),
    }
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_crate_reads_what_is_written_and_answers_alike(
        tokens in prop::collection::hash_set(any::<u64>(), 0..600),
        others in prop::collection::vec(any::<u64>(), 200),
    ) {
        let (geometry, seed) = (geometry(), seed());
        let filter = Filter::new(geometry, seed, NOW);
        for token in &tokens {
            filter.record(*token);
        }
        let bits = filter.cut(geometry.index(NOW)).unwrap();
        let payload = encode(&geometry, &seed, &bits);
        prop_assert!(payload.len() <= max_len(&geometry));
        prop_assert_eq!(read(&payload), Ok(bits));
        let theirs = Bloom::<u64>::from_bytes(unflagged(&payload)).unwrap();
        for token in tokens.iter().chain(&others) {
            prop_assert_eq!(filter.knows(*token), theirs.check(token));
        }
    }

    #[test]
    fn what_the_crate_wrote_is_read(tokens in prop::collection::vec(any::<u64>(), 0..600)) {
        let (geometry, seed) = (geometry(), seed());
        let mut theirs =
            Bloom::<u64>::new_with_seed(geometry.bits / 8, 500, &seed.positions).unwrap();
        for token in &tokens {
            theirs.set(token);
        }
        let bits = read(&[&[PLAIN], theirs.as_slice()].concat()).unwrap();
        let packed = packed(&[theirs.as_slice()]);
        let short = packed.len() <= max_len(&geometry);
        prop_assert_eq!(read(&packed), if short { Ok(bits.clone()) } else { Err(Refusal::TooLong) });
        let filter = Filter::new(geometry, seed, NOW);
        filter.merge(geometry.index(NOW), &bits).unwrap();
        prop_assert!(tokens.iter().all(|token| filter.knows(*token)));
    }

    /// Nothing breaks it, and what it reads has the right length.
    #[test]
    fn anything_is_read_or_refused(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        flag in 0..3_u8,
        sparse in any::<bool>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        cut in any::<prop::sample::Index>(),
    ) {
        let _ = read(&bytes);
        let _ = read(&[&[flag], &bytes[..]].concat());
        let bits = vec![if sparse { 1 } else { 0x55 }; geometry().bits / 8];
        let mut payload = encode(&geometry(), &seed(), &bits);
        for (at, byte) in &changes {
            let at = at.index(payload.len());
            payload[at] = *byte;
        }
        if let Ok(bits) = read(&payload) {
            prop_assert_eq!(bits.len(), geometry().bits / 8);
        }
        let cut = cut.index(payload.len());
        prop_assert!(read(&payload[..cut]).is_err());
        payload.extend_from_slice(&bytes);
        prop_assert!(bytes.is_empty() || read(&payload).is_err());
    }
}

#[test]
fn sparse_filters_are_packed_and_dense_ones_are_not() {
    let bytes = geometry().bits / 8;
    let sparse = encode(&geometry(), &seed(), &vec![0; bytes]);
    assert_eq!((sparse[0], sparse.len() < 200), (GZIP, true));
    let dense = encode(&geometry(), &seed(), &vec![0x11; bytes]);
    assert_eq!((dense[0], dense.len()), (PLAIN, max_len(&geometry())));
}

#[test]
fn what_does_not_fit_is_refused_for_its_reason() {
    let (geometry, seed) = (geometry(), seed());
    let bits = vec![3; geometry.bits / 8];
    let good = [&header(&geometry, &seed)[..], &bits].concat();
    let plain = |bytes: &[u8]| [&[PLAIN], bytes].concat();
    assert_eq!(read(&plain(&good)).as_ref(), Ok(&bits));
    assert_eq!(read(&packed(&[&good])).as_ref(), Ok(&bits));
    let altered = |at: usize| {
        let mut bytes = good.clone();
        bytes[at] ^= 1;
        bytes
    };
    for (at, refusal) in [
        (0, Refusal::Malformed),
        (1, Refusal::Geometry),
        (8, Refusal::Geometry),
        (9, Refusal::Geometry),
        (13, Refusal::Seed),
        (44, Refusal::Seed),
    ] {
        assert_eq!(read(&plain(&altered(at))), Err(refusal), "{at}");
        assert_eq!(read(&packed(&[&altered(at)])), Err(refusal), "{at}");
    }
    for (payload, refusal) in [
        (vec![], Refusal::Malformed),
        (vec![PLAIN], Refusal::Malformed),
        (vec![GZIP], Refusal::Malformed),
        ([&[2], &good[..]].concat(), Refusal::Malformed),
        (plain(&good[..good.len() - 1]), Refusal::Malformed),
        (plain(&[&good[..], &[0]].concat()), Refusal::TooLong),
        (packed(&[&good[..good.len() - 1]]), Refusal::Malformed),
        (packed(&[&good, &[0]]), Refusal::TooLong),
        (packed(&[&good[..20]]), Refusal::Malformed),
        (vec![GZIP; max_len(&geometry) + 1], Refusal::TooLong),
        // Another member, and anything else behind.
        ([packed(&[&good]), packed(&[&good])[1..].to_vec()].concat(), Refusal::Malformed),
        ([packed(&[&good]), vec![0]].concat(), Refusal::Malformed),
        ([packed(&[]), packed(&[&good])[1..].to_vec()].concat(), Refusal::Malformed),
    ] {
        assert_eq!(read(&payload), Err(refusal));
    }
    let bomb = packed(&[&good, &vec![0; 20_000]]);
    assert!(bomb.len() <= max_len(&geometry), "its length alone does not tell");
    assert_eq!(read(&bomb), Err(Refusal::TooLong));
    let mut checksum = packed(&[&good]);
    let at = checksum.len() - 8;
    checksum[at] ^= 1;
    assert_eq!(read(&checksum), Err(Refusal::Malformed));
}

#[test]
fn a_filter_that_says_nothing_is_refused() {
    let geometry = geometry();
    let mut bits = vec![0xff; geometry.bits / 8];
    assert_eq!(read(&encode(&geometry, &seed(), &bits)), Err(Refusal::Saturated));
    // Eight times as many as it was made for is not enough to be refused.
    bits.iter_mut().step_by(16).for_each(|byte| *byte = 0xfc);
    assert!(read(&encode(&geometry, &seed(), &bits)).is_ok());
}
