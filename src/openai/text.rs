//! Strings of JSON without a copy.

use std::borrow::Cow;

use serde::{Deserialize, Deserializer};

/// An optional string, borrowed where it stands without escapes. By itself serde borrows a `Cow`, and copies one that is
/// inside an `Option`.
///
/// # Errors
/// Where the value is neither a string nor null.
pub fn borrowed<'de: 'a, 'a, D: Deserializer<'de>>(from: D) -> Result<Option<Cow<'a, str>>, D::Error> {
    #[derive(Deserialize)]
    struct Text<'a>(#[serde(borrow)] Cow<'a, str>);
    Ok(Option::<Text<'a>>::deserialize(from)?.map(|text| text.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_has_escapes_is_copied() {
        #[derive(Deserialize)]
        struct One<'a>(#[serde(borrow, deserialize_with = "borrowed")] Option<Cow<'a, str>>);
        let read = |json: &'static str| serde_json::from_str::<One<'static>>(json).ok().and_then(|one| one.0);
        assert!(matches!(read("\"plain\""), Some(Cow::Borrowed("plain"))));
        assert!(matches!(read(r#""a\nb""#), Some(Cow::Owned(text)) if text == "a\nb"));
        assert_eq!((read("null"), read("3")), (None, None));
    }
}
