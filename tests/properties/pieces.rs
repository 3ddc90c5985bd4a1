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
