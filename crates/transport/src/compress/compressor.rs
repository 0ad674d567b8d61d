//! The encoder of one body.

use std::io::{self, Write};

use flate2::{Compression, write::GzEncoder};
use zstd::stream::raw::CParameter;

use super::Encoding;

/// The window of zstd, as a power of two in bytes: it bounds the memory of a body to 1.8 MiB at the
/// default level (measured); otherwise gateway and client would each keep up to 8 MiB.
const ZSTD_WINDOW_LOG: u32 = 18;

/// The highest level of zstd whose own tables are small. Those of level 12 take 40 MiB, whatever
/// the window.
const MAX_SMALL_LEVEL: u8 = 3;

/// The streaming encoder of one body. [`Self::flush`] emits all input so far.
pub struct Compressor {
    stream: CompressingEncoder,
    /// True if input may be left in the encoder.
    is_dirty: bool,
    is_finished: bool,
}

/// An encoder. Each call swaps the caller's buffer in as its output.
enum CompressingEncoder {
    Gzip(GzEncoder<Vec<u8>>),
    Zstd(zstd::stream::write::Encoder<'static, Vec<u8>>),
}

impl CompressingEncoder {
    fn writer(&mut self) -> &mut dyn Write {
        match self {
            Self::Gzip(encoder) => encoder,
            Self::Zstd(encoder) => encoder,
        }
    }

    fn output(&mut self) -> &mut Vec<u8> {
        match self {
            Self::Gzip(encoder) => encoder.get_mut(),
            Self::Zstd(encoder) => encoder.get_mut(),
        }
    }
}

/// Memory of a gzip encoder with its buffers, in bytes.
const GZIP_MEMORY: u64 = 384 * 1024;
/// Memory of a zstd encoder without its window, in bytes: at levels up to 3, and at higher levels.
const ZSTD_BASE_MEMORY: (u64, u64) = (320 * 1024, 448 * 1024);
/// Further memory of a zstd encoder, in multiples of its window: at levels up to 3, and at higher
/// levels.
const ZSTD_WINDOWS: (u64, u64) = (7, 18);
/// Most memory of a zstd encoder, in bytes.
const MAX_ZSTD_MEMORY: u64 = 3328 * 1024;

impl Compressor {
    /// Upper bound of the memory of [`Self::new`], in bytes: measured, with `ZSTD_sizeof_CCtx`.
    pub fn memory(encoding: Encoding, level: u8, length: Option<u64>) -> u64 {
        if encoding == Encoding::Gzip {
            return GZIP_MEMORY;
        }
        let max = 1 << ZSTD_WINDOW_LOG;
        let window = length.map_or(max, |length| length.min(max).next_power_of_two());
        let memory = if level > MAX_SMALL_LEVEL {
            ZSTD_BASE_MEMORY.1 + ZSTD_WINDOWS.1 * window
        } else {
            ZSTD_BASE_MEMORY.0 + ZSTD_WINDOWS.0 * window
        };
        memory.min(MAX_ZSTD_MEMORY)
    }

    /// An encoder at `level`. `length` is the body's, if known: a short body then takes little
    /// memory.
    ///
    /// # Errors
    /// The encoder cannot allocate its memory, or the level does not exist.
    pub fn new(encoding: Encoding, level: u8, length: Option<u64>) -> io::Result<Self> {
        let stream = match encoding {
            Encoding::Gzip => CompressingEncoder::Gzip(GzEncoder::new(
                Vec::new(),
                Compression::new(u32::from(level)),
            )),
            Encoding::Zstd => {
                let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), i32::from(level))?;
                encoder.window_log(ZSTD_WINDOW_LOG)?;
                if level > MAX_SMALL_LEVEL {
                    encoder.set_parameter(CParameter::HashLog(ZSTD_WINDOW_LOG))?;
                    encoder.set_parameter(CParameter::ChainLog(ZSTD_WINDOW_LOG))?;
                }
                encoder.set_pledged_src_size(length)?;
                CompressingEncoder::Zstd(encoder)
            }
        };
        Ok(Self { stream, is_dirty: false, is_finished: false })
    }

    /// Compresses `bytes` and appends finished output to `out`.
    ///
    /// # Errors
    /// The encoder failed; the body cannot be continued.
    pub fn write(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
        self.is_dirty |= !bytes.is_empty();
        self.with_output(out, |stream| stream.writer().write_all(bytes))
    }

    /// Appends the rest of the output so far to `out`, so that the client can decode all input.
    ///
    /// # Errors
    /// See [`Self::write`].
    pub fn flush(&mut self, out: &mut Vec<u8>) -> io::Result<()> {
        if !std::mem::take(&mut self.is_dirty) {
            return Ok(());
        }
        self.with_output(out, |stream| stream.writer().flush())
    }

    /// Appends the end of the body to `out`.
    ///
    /// # Errors
    /// See [`Self::write`].
    pub fn finish(&mut self, out: &mut Vec<u8>) -> io::Result<()> {
        if !self.is_finished {
            self.with_output(out, |stream| match stream {
                CompressingEncoder::Gzip(encoder) => encoder.try_finish(),
                CompressingEncoder::Zstd(encoder) => encoder.do_finish(),
            })?;
            self.is_finished = true;
        }
        Ok(())
    }

    /// True if the end was written.
    pub fn is_finished(&self) -> bool {
        self.is_finished
    }

    fn with_output(
        &mut self,
        out: &mut Vec<u8>,
        work: impl FnOnce(&mut CompressingEncoder) -> io::Result<()>,
    ) -> io::Result<()> {
        std::mem::swap(self.stream.output(), out);
        let done = work(&mut self.stream);
        std::mem::swap(self.stream.output(), out);
        done
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use proptest::prelude::*;

    use super::*;

    /// What a client can decode of the beginning of a body.
    fn decode(encoding: Encoding, bytes: &[u8]) -> (Vec<u8>, io::Result<()>) {
        let mut reader: Box<dyn Read + '_> = match encoding {
            Encoding::Gzip => Box::new(flate2::read::GzDecoder::new(bytes)),
            Encoding::Zstd => Box::new(zstd::stream::read::Decoder::new(bytes).unwrap()),
        };
        let mut data = Vec::new();
        let ended = reader.read_to_end(&mut data).map(|_| ());
        (data, ended)
    }

    proptest! {
        #[test]
        fn bodies_decode_to_what_was_written(
            pieces in prop::collection::vec(
                (prop::collection::vec(any::<u8>(), 0..200), 1usize..200, any::<bool>()), 0..8),
            level in 1u8..=9,
            knows_length in any::<bool>(),
        ) {
            let length = pieces.iter().map(|(piece, repeats, _)| piece.len() * repeats).sum::<usize>();
            let length = knows_length.then_some(length as u64);
            for encoding in [Encoding::Gzip, Encoding::Zstd] {
                let mut compressor = Compressor::new(encoding, level, length).unwrap();
                let (mut out, mut data) = (b"before".to_vec(), Vec::new());
                for (piece, repeats, flushes) in &pieces {
                    let piece = piece.repeat(*repeats);
                    compressor.write(&piece, &mut out).unwrap();
                    data.extend_from_slice(&piece);
                    if *flushes {
                        compressor.flush(&mut out).unwrap();
                        prop_assert_eq!(&decode(encoding, &out[6..]).0, &data);
                    }
                }
                prop_assert!(out.len() == 6 || decode(encoding, &out[6..]).1.is_err(), "no end");
                compressor.finish(&mut out).unwrap();
                let (decoded, ended) = decode(encoding, &out[6..]);
                prop_assert!(ended.is_ok());
                prop_assert_eq!(decoded, data);
            }
        }
    }

    #[test]
    fn a_flush_without_input_writes_nothing() {
        for encoding in [Encoding::Gzip, Encoding::Zstd] {
            let (mut compressor, mut out) =
                (Compressor::new(encoding, 3, None).unwrap(), Vec::new());
            compressor.write(b"a", &mut out).unwrap();
            compressor.flush(&mut out).unwrap();
            let length = out.len();
            compressor.flush(&mut out).unwrap();
            assert_eq!(out.len(), length);
        }
    }
}
