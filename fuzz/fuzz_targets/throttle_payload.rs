//! A filter payload from Redis is decoded completely or rejected, and the decoded bits survive a
//! round trip.
#![no_main]

use std::io::Write;

use flate2::{Compression, write::GzEncoder};
use libfuzzer_sys::fuzz_target;
use tidegate::{
    secret::KeySecret,
    throttle::{
        Geometry, HashKeys,
        geometry::{MAX_GROWTH, Sizing},
        payload::{decode, encode, max_len, resize},
    },
    time::Millis,
};

fuzz_target!(|input: (u8, Vec<u8>)| {
    let (form, bytes) = input;
    let sizing = Sizing { capacity: 20, false_positive: 0.1, memory: Millis::from_mins(1) };
    let geometry = Geometry::new(&sizing).expect("a sizing");
    let hash_keys = HashKeys { token_secret: KeySecret(1, 2), positions: [7; 32] };
    // A valid header, so that the decoder reads the data after it.
    let mut header = vec![1];
    // Of a size that filters may grow to, or just beyond.
    let growth = 1_u64 << (form / 3 % 6);
    header.extend_from_slice(&(geometry.bits as u64 / 8 * growth).to_le_bytes());
    header.extend_from_slice(&geometry.hashes.to_le_bytes());
    header.extend_from_slice(&hash_keys.positions);
    let mut payload = match form % 3 {
        0 => Vec::new(),
        1 => [&[0], &header[..]].concat(),
        _ => {
            let mut packed = GzEncoder::new(vec![1], Compression::fast());
            packed.write_all(&header).expect("memory");
            packed.write_all(&bytes).expect("memory");
            packed.finish().expect("memory")
        }
    };
    if form % 3 < 2 {
        payload.extend_from_slice(&bytes);
    }
    let Ok(bits) = decode(&geometry, &hash_keys, &payload) else { return };
    let growth = (bits.len() / (geometry.bits / 8)) as u32;
    let sizes = geometry.grown(growth);
    assert!(growth.is_power_of_two() && growth <= MAX_GROWTH && bits.len() == sizes.bits / 8);
    assert!(payload.len() <= max_len(&geometry));
    let folded = resize(&bits, geometry.bits / 8);
    assert_eq!(resize(&resize(&folded, bits.len()), folded.len()), folded);
    let again = encode(&sizes, &hash_keys, &bits);
    assert!(again.len() <= max_len(&geometry));
    assert_eq!(decode(&geometry, &hash_keys, &again), Ok(bits));
});
