//! Where a stream of bytes is cut: the input says so itself, so that a fuzzer can choose.

/// Cuts `input` by its own first bytes: a count `n`, then `n` lengths that are used over and over. Returns the pieces and
/// the same bytes whole.
pub fn cut(input: &[u8]) -> (Vec<&[u8]>, &[u8]) {
    let Some((count, rest)) = input.split_first() else { return (Vec::new(), input) };
    let (lengths, whole) = rest.split_at(usize::from(count % 8).min(rest.len()));
    let mut pieces = Vec::new();
    let mut left = whole;
    for length in lengths.iter().cycle() {
        // Byte by byte through all of a long input would only be slow.
        let length = (usize::from(*length) + 1 + pieces.len() / 64).min(left.len());
        let (piece, after) = left.split_at(length);
        pieces.push(piece);
        left = after;
        if left.is_empty() {
            break;
        }
    }
    if lengths.is_empty() {
        pieces.push(whole);
    }
    (pieces, whole)
}

/// Stands between the request, the answer and the next request.
const BORDER: &[u8] = b"\n----\n";

/// What stands between borders.
pub fn parts(mut input: &[u8]) -> Vec<&[u8]> {
    let mut parts = Vec::new();
    while let Some(at) = input.windows(BORDER.len()).position(|window| window == BORDER) {
        parts.push(&input[..at]);
        input = &input[at + BORDER.len()..];
    }
    parts.push(input);
    parts
}

/// Bytes past this are not made longer.
const LONGEST: usize = 128 << 10;

/// Makes a short input long, for what is done with long ones only. Three bytes that no JSON has stand for more: 1 for a word of
/// 300 bytes, 2 for a text of 20 KB, 3 for forty small objects with a comma behind each.
pub fn stretch(input: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(input.len());
    for byte in input {
        match byte {
            _ if out.len() > LONGEST => out.push(*byte),
            1 => out.extend_from_slice(&[b'w'; 300]),
            2 => (0..2500u64)
                .for_each(|line| out.extend_from_slice(format!("{:07x} ", line * line).as_bytes())),
            3 => (0..40)
                .for_each(|number| out.extend_from_slice(format!("{{\"n\":{}}},", number % 7).as_bytes())),
            other => out.push(*other),
        }
    }
    out
}
