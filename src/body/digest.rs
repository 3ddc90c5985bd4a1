//! Length and checksum of bytes at one point of their way, to be compared with another point's.

/// What has passed so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Digest {
    length: u64,
    crc: u32,
}

impl Digest {
    pub fn add(&mut self, data: &[u8]) {
        self.length += data.len() as u64;
        self.crc = crc32c::crc32c_append(self.crc, data);
    }

    /// Of these bytes alone.
    pub fn of(data: &[u8]) -> Digest {
        let mut digest = Digest::default();
        digest.add(data);
        digest
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn pieces_do_not_matter_and_every_change_does(
            data in proptest::collection::vec(any::<u8>(), 1..200),
            cut: prop::sample::Index,
            bit: prop::sample::Index,
        ) {
            let mut pieces = Digest::default();
            let (first, second) = data.split_at(cut.index(data.len()));
            pieces.add(first);
            pieces.add(second);
            prop_assert_eq!(pieces, Digest::of(&data));
            let mut other = data.clone();
            let at = bit.index(other.len() * 8);
            other[at / 8] ^= 1 << (at % 8);
            prop_assert_ne!(Digest::of(&other), Digest::of(&data));
            prop_assert_ne!(Digest::of(&data[..data.len() - 1]), Digest::of(&data));
        }
    }
}
