//! Durations and sizes as people write them in a configuration file: `"250ms"`, `"30s"`, `"5m"`, `"1h"`, `"64KiB"`, `"512MiB"`.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A duration written with its unit: `ms`, `s`, `m`, `h` or `d`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(pub Duration);

/// A number of bytes written with its unit: `B`, `KiB`, `MiB` or `GiB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

/// Units from large to small, with the milliseconds each one holds.
const SPANS: [(&str, u64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];
/// Milliseconds of a leap year.
const YEAR: u64 = 366 * 86_400_000;
const SIZES: [(&str, u64); 4] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

impl Span {
    pub const fn seconds(seconds: u64) -> Self {
        Self(Duration::from_secs(seconds))
    }
}

impl Size {
    pub const fn mib(mib: u64) -> Self {
        Self(mib << 20)
    }
}

/// Splits `"64MiB"` into number and unit and multiplies them.
fn parse(text: &str, units: &[(&str, u64)], what: &str, example: &str) -> Result<u64, String> {
    let text = text.trim();
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let factor = units.iter().find(|(name, _)| *name == unit.trim()).map(|(_, factor)| *factor);
    match (number.parse::<u64>().ok(), factor) {
        (Some(number), Some(factor)) => {
            number.checked_mul(factor).ok_or_else(|| format!("{what} {text:?} is too large"))
        }
        _ => Err(format!("{text:?} is not a {what}; write it like {example}")),
    }
}

/// Writes `value` in the largest unit that divides it.
fn print(value: u64, units: &[(&str, u64)]) -> String {
    let fits = units.iter().find(|(_, factor)| value.is_multiple_of(*factor) && value >= *factor);
    match fits.or(units.last()) {
        Some((name, factor)) => format!("{}{name}", value / factor),
        None => value.to_string(),
    }
}

impl std::str::FromStr for Span {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let ms = parse(text, &SPANS, "duration", "\"30s\", \"5m\" or \"250ms\"")?;
        // More than any limit needs, and far from where adding it to a clock would overflow.
        match ms <= YEAR {
            true => Ok(Self(Duration::from_millis(ms))),
            false => Err(format!("duration {text:?} is too large; a year is the most")),
        }
    }
}

impl std::str::FromStr for Size {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        parse(text, &SIZES, "size", "\"64KiB\" or \"512MiB\"").map(Self)
    }
}

impl fmt::Display for Span {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&print(self.0.as_millis() as u64, &SPANS))
    }
}

impl fmt::Display for Size {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&print(self.0, &SIZES))
    }
}

macro_rules! as_text {
    ($type:ty) => {
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
            }
        }
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.collect_str(self)
            }
        }
    };
}
as_text!(Span);
as_text!(Size);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_is_read_back() {
        for text in ["250ms", "30s", "5m", "1h", "2d", "0ms"] {
            assert_eq!(text.parse::<Span>().unwrap().to_string(), text);
        }
        for text in ["1B", "64KiB", "512MiB", "3GiB"] {
            assert_eq!(text.parse::<Size>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn nonsense_is_refused_with_an_example() {
        for text in ["", "s", "5", "5 parsecs", "-1s", "99999999999999999999s", "367d", "1.5h"] {
            let error = text.parse::<Span>().unwrap_err();
            assert!(error.contains("write it like") || error.contains("too large"), "{error}");
        }
        assert!("18446744073709551615GiB".parse::<Size>().unwrap_err().contains("too large"));
    }
}
