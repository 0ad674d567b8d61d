//! [`UsageDecoder`]: removes the content coding of a body on its way to the scanner.

use std::io::{self, Write};

use flate2::write::{MultiGzDecoder, ZlibDecoder};

use super::{number::Quantity, scanner::BodyScanner};

/// The largest window of zstd, as a power of two in bytes (RFC 9659).
const ZSTD_WINDOW_LOG: u32 = 23;

/// Most bytes that are decoded whatever the length of a body.
const DECODED_AT_FIRST: u64 = 1 << 20;
/// Most further bytes that are decoded for each byte of a body. Texts compress to a twentieth; a
/// body that is made to keep the gateway busy, to a thousandth.
const MAX_RATIO: u64 = 100;

/// A scanner behind the decoder of a body's content coding.
pub struct UsageDecoder {
    stream: DecodingStream,
    /// True if the body is not in its coding, or expands too much: the scanner has what came
    /// before.
    has_failed: bool,
}

enum DecodingStream {
    Identity(ScannerWriter),
    Gzip(MultiGzDecoder<ScannerWriter>),
    Deflate(ZlibDecoder<ScannerWriter>),
    Zstd(zstd::stream::write::Decoder<'static, ScannerWriter>),
}

/// The scanner as the output of a decoder.
struct ScannerWriter {
    scanner: BodyScanner,
    /// Number of further bytes that may be decoded.
    allowance: u64,
}

impl Write for ScannerWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let left = self.allowance.checked_sub(bytes.len() as u64);
        self.allowance = left.ok_or_else(|| io::Error::other("the body expands too much"))?;
        self.scanner.push(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl UsageDecoder {
    /// A decoder for a body with this `Content-Encoding`; `None` if the coding is neither gzip,
    /// deflate nor zstd.
    pub fn new(coding: Option<&[u8]>, scanner: BodyScanner) -> Option<Self> {
        let coding = coding.unwrap_or_default().trim_ascii();
        let is = |name: &str| coding.eq_ignore_ascii_case(name.as_bytes());
        let output = ScannerWriter { scanner, allowance: DECODED_AT_FIRST };
        let stream = if coding.is_empty() || is("identity") {
            DecodingStream::Identity(output)
        } else if is("gzip") || is("x-gzip") {
            DecodingStream::Gzip(MultiGzDecoder::new(output))
        } else if is("deflate") {
            DecodingStream::Deflate(ZlibDecoder::new(output))
        } else if is("zstd") {
            let mut decoder = zstd::stream::write::Decoder::new(output).ok()?;
            decoder.window_log_max(ZSTD_WINDOW_LOG).ok()?;
            DecodingStream::Zstd(decoder)
        } else {
            return None;
        };
        Some(Self { stream, has_failed: false })
    }

    /// Looks at the next bytes of the coded body.
    pub fn push(&mut self, bytes: &[u8]) {
        if let DecodingStream::Identity(output) = &mut self.stream {
            return output.scanner.push(bytes);
        }
        if !self.has_failed {
            let more = (bytes.len() as u64).saturating_mul(MAX_RATIO);
            let output = self.stream.output_mut();
            output.allowance = output.allowance.saturating_add(more);
            self.has_failed = self.stream.writer().write_all(bytes).is_err();
        }
    }

    /// Passes on what the decoder holds back. Call it before [`Self::quantity`].
    pub fn flush(&mut self) {
        if !self.has_failed {
            self.has_failed = self.stream.writer().flush().is_err();
        }
    }

    /// True if the body is not in its coding.
    pub fn has_failed(&self) -> bool {
        self.has_failed
    }

    /// The number at the path with this index.
    pub fn quantity(&self, path: usize) -> Option<Quantity> {
        self.stream.scanner().quantity(path)
    }
}

impl DecodingStream {
    fn writer(&mut self) -> &mut dyn Write {
        match self {
            Self::Identity(output) => output,
            Self::Gzip(decoder) => decoder,
            Self::Deflate(decoder) => decoder,
            Self::Zstd(decoder) => decoder,
        }
    }

    fn scanner(&self) -> &BodyScanner {
        match self {
            Self::Identity(output) => &output.scanner,
            Self::Gzip(decoder) => &decoder.get_ref().scanner,
            Self::Deflate(decoder) => &decoder.get_ref().scanner,
            Self::Zstd(decoder) => &decoder.get_ref().scanner,
        }
    }

    fn output_mut(&mut self) -> &mut ScannerWriter {
        match self {
            Self::Identity(output) => output,
            Self::Gzip(decoder) => decoder.get_mut(),
            Self::Deflate(decoder) => decoder.get_mut(),
            Self::Zstd(decoder) => decoder.get_mut(),
        }
    }
}
