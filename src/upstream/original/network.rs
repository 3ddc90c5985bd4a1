//! Ranges of addresses, written `10.0.0.0/8`.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// All addresses that begin with the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    bits: u32,
}

/// Addresses that belong to no one in particular: loopback and private ranges. Link-local ones are not among them, where
/// clouds keep what knows their keys.
pub const PRIVATE: [&str; 6] =
    ["127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "::1/128", "fc00::/7"];

impl Network {
    /// The private ranges.
    pub fn private() -> Vec<Self> {
        PRIVATE.iter().filter_map(|range| range.parse().ok()).collect()
    }

    pub fn contains(&self, address: IpAddr) -> bool {
        let (size, ours, theirs) = match (self.address, address) {
            (IpAddr::V4(ours), IpAddr::V4(theirs)) => (32, u32::from(ours).into(), u32::from(theirs).into()),
            (IpAddr::V6(ours), IpAddr::V6(theirs)) => (128, u128::from(ours), u128::from(theirs)),
            _ => return false,
        };
        (ours ^ theirs).checked_shr(size - self.bits).is_none_or(|differing| differing == 0)
    }
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("{text:?} is no range of addresses; write it like \"10.0.0.0/8\" or \"fd00::/8\"");
        let (address, bits) =
            text.split_once('/').map_or((text, None), |(address, bits)| (address, Some(bits)));
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let size = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.map_or(Ok(size), |bits| bits.parse().map_err(|_| wrong()))?;
        match bits <= size {
            true => Ok(Self { address, bits }),
            false => Err(wrong()),
        }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}/{}", self.address, self.bits)
    }
}

impl<'de> Deserialize<'de> for Network {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
    }
}

impl Serialize for Network {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_holds_what_begins_like_it() {
        for (range, inside, outside) in [
            ("10.0.0.0/8", "10.255.0.1", "11.0.0.1"),
            ("172.16.0.0/12", "172.31.9.9", "172.32.0.1"),
            ("192.0.2.7", "192.0.2.7", "192.0.2.8"),
            ("fd00::/8", "fd12::1", "fe80::1"),
            ("::1/128", "::1", "::2"),
            ("0.0.0.0/0", "255.1.2.3", "::1"),
            ("::/0", "1::1", "1.2.3.4"),
        ] {
            let network: Network = range.parse().unwrap();
            assert!(network.contains(inside.parse().unwrap()), "{inside} in {range}");
            assert!(!network.contains(outside.parse().unwrap()), "{outside} not in {range}");
            assert_eq!(network.to_string().parse(), Ok(network));
        }
        for wrong in ["", "10.0.0.0/33", "10.0.0/8", "::/129", "host", "10.0.0.0/", "10.0.0.0/-1"] {
            assert!(wrong.parse::<Network>().unwrap_err().contains("write it like"), "{wrong}");
        }
    }
}
