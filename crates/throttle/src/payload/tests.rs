use bloomfilter::Bloom;
use proptest::prelude::*;
use tidegate_base::time::{Millis, StoreTime};
use tidegate_system::secret::KeySecret;

use super::*;
use crate::{Filter, geometry::Sizing};

const NOW: StoreTime = StoreTime::from_unix_ms(1_700_000_040_000);

fn geometry() -> Geometry {
    Geometry::new(&Sizing { capacity: 500, false_positive: 0.001, memory: Millis::from_mins(30) })
        .unwrap()
}

fn hash_keys() -> HashKeys {
    HashKeys { token_secret: KeySecret(1, 2), positions: std::array::from_fn(|i| i as u8) }
}

fn gzipped(parts: &[&[u8]]) -> Vec<u8> {
    let mut packed = GzEncoder::new(vec![GZIP], Compression::fast());
    for part in parts {
        packed.write_all(part).unwrap();
    }
    packed.finish().unwrap()
}

fn read(payload: &[u8]) -> Result<Vec<u8>, PayloadError> {
    decode(&geometry(), &hash_keys(), payload)
}

/// The bytes in the crate's format, with any flag.
fn crate_bytes(payload: &[u8]) -> Vec<u8> {
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
    fn the_crate_reads_encoded_payloads(
        tokens in prop::collection::hash_set(any::<u64>(), 0..600),
        others in prop::collection::vec(any::<u64>(), 200),
    ) {
        let (geometry, hash_keys) = (geometry(), hash_keys());
        let filter = Filter::new(geometry, hash_keys, NOW);
        for token in &tokens {
            filter.record(*token);
        }
        let bits = filter.export(geometry.index(NOW)).unwrap();
        let payload = encode(&geometry, &hash_keys, &bits);
        prop_assert!(payload.len() <= max_len(&geometry));
        prop_assert_eq!(read(&payload), Ok(bits));
        let theirs = Bloom::<u64>::from_bytes(crate_bytes(&payload)).unwrap();
        for token in tokens.iter().chain(&others) {
            prop_assert_eq!(filter.contains(*token), theirs.check(token));
        }
    }

    #[test]
    fn payloads_of_the_crate_are_decoded(tokens in prop::collection::vec(any::<u64>(), 0..600)) {
        let (geometry, hash_keys) = (geometry(), hash_keys());
        let mut theirs =
            Bloom::<u64>::new_with_seed(geometry.bits / 8, 500, &hash_keys.positions).unwrap();
        for token in &tokens {
            theirs.set(token);
        }
        let bits = read(&[&[PLAIN], theirs.as_slice()].concat()).unwrap();
        let packed = gzipped(&[theirs.as_slice()]);
        let short = packed.len() <= max_len(&geometry);
        prop_assert_eq!(read(&packed), if short { Ok(bits.clone()) } else { Err(PayloadError::TooLong) });
        let filter = Filter::new(geometry, hash_keys, NOW);
        filter.merge(geometry.index(NOW), &bits).unwrap();
        prop_assert!(tokens.iter().all(|token| filter.contains(*token)));
    }

    /// Arbitrary bytes and corrupted payloads.
    #[test]
    fn any_payload_is_decoded_to_the_right_length_or_rejected(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        flag in 0..3_u8,
        sparse in any::<bool>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        cut in any::<prop::sample::Index>(),
    ) {
        let _ = read(&bytes);
        let _ = read(&[&[flag], &bytes[..]].concat());
        let bits = vec![if sparse { 1 } else { 0x55 }; geometry().bits / 8];
        let mut payload = encode(&geometry(), &hash_keys(), &bits);
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

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Filters of all sizes agree: each has the token, and a conversion in steps gives the same
    /// bits.
    #[test]
    fn bits_convert_between_sizes(
        tokens in prop::collection::vec(any::<u64>(), 0..400),
        others in prop::collection::vec(any::<u64>(), 200),
        doublings in (0..=4_u32, 0..=4_u32),
    ) {
        let [from, to] = [doublings.0, doublings.1].map(|doublings| geometry().grown(1 << doublings));
        let filter = |geometry| Filter::new(geometry, hash_keys(), NOW);
        let (ours, theirs, converted) = (filter(from), filter(to), filter(to));
        for token in &tokens {
            ours.record(*token);
            theirs.record(*token);
        }
        let index = from.index(NOW);
        let bits = ours.export(index).unwrap();
        let payload = encode(&from, &hash_keys(), &bits);
        prop_assert_eq!(decode(&to, &hash_keys(), &payload), Ok(bits.clone()));
        let resized = resize(&bits, to.bits / 8);
        converted.merge(index, &resized).unwrap();
        prop_assert!(tokens.iter().all(|token| converted.contains(*token)));
        if to.growth <= from.growth {
            prop_assert_eq!(&resized, &theirs.export(index).unwrap(), "as if recorded at that size");
        } else {
            prop_assert_eq!(&resize(&resized, bits.len()), &bits);
            // A larger size adds no false positive.
            prop_assert!(others.iter().all(|token| converted.contains(*token) == ours.contains(*token)));
        }
        // A whole filter converts as its payloads do.
        let whole = ours.resized(to.growth);
        whole.take_marks(&ours);
        whole.absorb(&ours, 0..from.bits.max(to.bits));
        prop_assert_eq!(whole.export(index).unwrap(), resized);
        prop_assert_eq!(whole.take_changed(index), !tokens.is_empty());
    }
}

#[test]
fn only_sparse_filters_are_compressed() {
    let bytes = geometry().bits / 8;
    let sparse = encode(&geometry(), &hash_keys(), &vec![0; bytes]);
    assert_eq!((sparse[0], sparse.len() < 200), (GZIP, true));
    let dense = encode(&geometry(), &hash_keys(), &vec![0x11; bytes]);
    assert_eq!((dense[0], dense.len()), (PLAIN, 1 + HEADER_LEN + bytes));
}

#[test]
fn unusable_payloads_are_rejected_with_their_reason() {
    let (geometry, hash_keys) = (geometry(), hash_keys());
    let bits = vec![3; geometry.bits / 8];
    let good = [&header(&geometry, &hash_keys)[..], &bits].concat();
    let plain = |bytes: &[u8]| [&[PLAIN], bytes].concat();
    assert_eq!(read(&plain(&good)).as_ref(), Ok(&bits));
    assert_eq!(read(&gzipped(&[&good])).as_ref(), Ok(&bits));
    let altered = |at: usize| {
        let mut bytes = good.clone();
        bytes[at] ^= 1;
        bytes
    };
    for (at, error) in [
        (0, PayloadError::Malformed),
        (1, PayloadError::Geometry),
        (8, PayloadError::Geometry),
        (9, PayloadError::Geometry),
        (13, PayloadError::Seed),
        (44, PayloadError::Seed),
    ] {
        assert_eq!(read(&plain(&altered(at))), Err(error), "{at}");
        assert_eq!(read(&gzipped(&[&altered(at)])), Err(error), "{at}");
    }
    for (payload, error) in [
        (vec![], PayloadError::Malformed),
        (vec![PLAIN], PayloadError::Malformed),
        (vec![GZIP], PayloadError::Malformed),
        ([&[2], &good[..]].concat(), PayloadError::Malformed),
        (plain(&good[..good.len() - 1]), PayloadError::Malformed),
        (plain(&[&good[..], &[0]].concat()), PayloadError::TooLong),
        (gzipped(&[&good[..good.len() - 1]]), PayloadError::Malformed),
        (gzipped(&[&good, &[0]]), PayloadError::TooLong),
        (gzipped(&[&good[..20]]), PayloadError::Malformed),
        (vec![GZIP; max_len(&geometry) + 1], PayloadError::TooLong),
        // A second gzip member, and trailing bytes.
        ([gzipped(&[&good]), gzipped(&[&good])[1..].to_vec()].concat(), PayloadError::Malformed),
        ([gzipped(&[&good]), vec![0]].concat(), PayloadError::Malformed),
        ([gzipped(&[]), gzipped(&[&good])[1..].to_vec()].concat(), PayloadError::Malformed),
    ] {
        assert_eq!(read(&payload), Err(error));
    }
    let bomb = gzipped(&[&good, &vec![0; 20_000]]);
    assert!(bomb.len() <= max_len(&geometry), "its length is valid");
    assert_eq!(read(&bomb), Err(PayloadError::TooLong));
    let mut checksum = gzipped(&[&good]);
    let at = checksum.len() - 8;
    checksum[at] ^= 1;
    assert_eq!(read(&checksum), Err(PayloadError::Malformed));
}

#[test]
fn a_saturated_filter_is_rejected() {
    let geometry = geometry();
    let mut bits = vec![0xff; geometry.bits / 8];
    assert_eq!(read(&encode(&geometry, &hash_keys(), &bits)), Err(PayloadError::Saturated));
    // About eight times the tokens that it is sized for: just below the limit.
    bits.iter_mut().step_by(16).for_each(|byte| *byte = 0xfc);
    assert!(read(&encode(&geometry, &hash_keys(), &bits)).is_ok());
}
