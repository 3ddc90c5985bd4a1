//! How much of an exchange may be recorded: what the operator lets be kept, and what the client asks for.

use hyper::HeaderMap;
use hyper::header::HeaderName;
use serde::{Deserialize, Serialize};

/// From least to most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Nothing; it is only counted.
    Off,
    /// Times, sizes, ends and who answered; nothing of what was said, nor anything made of it but the model's name and
    /// token counts.
    Meta,
    /// The hashes of bodies as well, so that somebody who has a body can prove that it was this one; and to which
    /// conversation it belongs.
    Hash,
    /// Bodies, with masks in the place of secrets.
    Redacted,
    /// Bodies as they were.
    Full,
}

impl Mode {
    const ALL: [Mode; 5] = [Mode::Off, Mode::Meta, Mode::Hash, Mode::Redacted, Mode::Full];

    /// The name in headers and in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Off => "off",
            Mode::Meta => "meta",
            Mode::Hash => "hash",
            Mode::Redacted => "redacted",
            Mode::Full => "full",
        }
    }

    /// The least of what a header asks for, which may stand there more than once. A value that is not known can only have
    /// been meant to lower it.
    pub fn asked(headers: &HeaderMap, name: &HeaderName) -> Mode {
        let mode = |value: &[u8]| {
            let known = Mode::ALL.into_iter().find(|mode| mode.name().as_bytes() == value);
            known.unwrap_or(Mode::Meta)
        };
        headers.get_all(name).iter().map(|value| mode(value.as_bytes())).min().unwrap_or(Mode::Full)
    }

    /// Whether bodies have to be copied: to be kept, or to be read.
    pub fn wants_bodies(self) -> bool {
        self >= Mode::Hash
    }

    /// Whether bodies are kept.
    pub fn keeps_bodies(self) -> bool {
        self >= Mode::Redacted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_counts_and_the_unknown_is_little() {
        let asked = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            let name = HeaderName::from_static("x-serin-record");
            for value in values {
                headers.append(&name, value.parse().expect("a value"));
            }
            Mode::asked(&headers, &name)
        };
        assert_eq!(asked(&[]), Mode::Full);
        assert_eq!((asked(&["hash"]), asked(&["redacted"])), (Mode::Hash, Mode::Redacted));
        assert_eq!((asked(&["full", "meta"]), asked(&["off", "full"])), (Mode::Meta, Mode::Off));
        assert_eq!((asked(&["none"]), asked(&["Full"]), asked(&[""])), (Mode::Meta, Mode::Meta, Mode::Meta));
    }
}
