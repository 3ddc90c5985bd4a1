//! Content codings of bodies, for reading them. What is recorded stays as it was sent.

use std::borrow::Cow;
use std::io::{Read, Write};

/// The most bytes a body may come to.
const MOST: u64 = 256 << 20;
/// The most a body may be larger than what came: a few bytes could otherwise keep the reader busy for seconds.
const RATIO: u64 = 1000;

/// A body without its coding. `None` for one that is not known, is damaged, or comes to too much.
pub fn decode<'a>(coding: Option<&[u8]>, body: &'a [u8]) -> Option<Cow<'a, [u8]>> {
    let coding = coding.unwrap_or_default().trim_ascii().to_ascii_lowercase();
    match coding.as_slice() {
        b"" | b"identity" => Some(Cow::Borrowed(body)),
        b"gzip" | b"x-gzip" => read(flate2::read::MultiGzDecoder::new(body), body.len()),
        b"deflate" => read(flate2::read::ZlibDecoder::new(body), body.len()),
        b"zstd" => read(zstd::stream::read::Decoder::with_buffer(body).ok()?, body.len()),
        _ => None,
    }
}

/// A body in a coding again. `None` for one that is not known.
pub fn encode(coding: Option<&[u8]>, body: Vec<u8>) -> Option<Vec<u8>> {
    let coding = coding.unwrap_or_default().trim_ascii().to_ascii_lowercase();
    match coding.as_slice() {
        b"" | b"identity" => Some(body),
        b"gzip" | b"x-gzip" => {
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
            encoder.write_all(&body).and_then(|()| encoder.finish()).ok()
        }
        b"deflate" => {
            let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
            encoder.write_all(&body).and_then(|()| encoder.finish()).ok()
        }
        b"zstd" => zstd::bulk::compress(&body, 3).ok(),
        _ => None,
    }
}

fn read<'a>(decoder: impl Read, len: usize) -> Option<Cow<'a, [u8]>> {
    let most = MOST.min((len as u64).saturating_mul(RATIO) + 4096);
    let mut decoded = Vec::new();
    decoder.take(most + 1).read_to_end(&mut decoded).ok()?;
    (decoded.len() as u64 <= most).then_some(Cow::Owned(decoded))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_packed_is_unpacked_and_bombs_are_not() {
        let gzip = |bytes: &[u8]| {
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            encoder.write_all(bytes).and_then(|()| encoder.finish()).expect("compresses")
        };
        let text = b"some words, ".repeat(50);
        assert_eq!(decode(Some(b" GZIP "), &gzip(&text)).as_deref(), Some(text.as_slice()));
        let packed = zstd::bulk::compress(&text, 1).expect("compresses");
        assert_eq!(decode(Some(b"zstd"), &packed).as_deref(), Some(text.as_slice()));
        assert_eq!(decode(None, &text).as_deref(), Some(text.as_slice()));
        for coding in [None, Some(b"identity".as_slice()), Some(b"gzip"), Some(b"deflate"), Some(b"zstd")] {
            let again = encode(coding, text.clone()).expect("is known");
            assert_eq!(decode(coding, &again).as_deref(), Some(text.as_slice()));
        }
        assert!(encode(Some(b"br"), Vec::new()).is_none());
        assert!(decode(Some(b"br"), &text).is_none() && decode(Some(b"gzip"), &text).is_none());
        let bomb = zstd::bulk::compress(&vec![0; 64 << 20], 19).expect("compresses");
        assert!(decode(Some(b"zstd"), &bomb).is_none());
    }
}
