//! One field of a JSON object that may not be whole yet: for what must be known before the rest has arrived.

/// The value of the first field of that name in an object, as the bytes that begin with it. Fields of nested objects are
/// passed over; `None` if the bytes end first or are no object.
pub fn value<'a>(json: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let mut rest = json.trim_ascii_start().strip_prefix(b"{")?;
    loop {
        let (key, after) = string(rest.trim_ascii_start())?;
        let value = after.trim_ascii_start().strip_prefix(b":")?.trim_ascii_start();
        if key == name.as_bytes() {
            return Some(value);
        }
        rest = skip(value)?.trim_ascii_start().strip_prefix(b",")?;
    }
}

/// The text of a string field, as written: escapes are not resolved.
pub fn text<'a>(json: &'a [u8], name: &str) -> Option<&'a [u8]> {
    string(value(json, name)?).map(|(text, _)| text)
}

/// A string and what follows it.
pub fn string(json: &[u8]) -> Option<(&[u8], &[u8])> {
    let inner = json.strip_prefix(b"\"")?;
    let mut at = 0;
    loop {
        at += memchr::memchr2(b'"', b'\\', inner.get(at..)?)?;
        if inner[at] == b'"' {
            return Some((&inner[..at], &inner[at + 1..]));
        }
        at += 2;
    }
}

/// What follows a value.
pub fn skip(json: &[u8]) -> Option<&[u8]> {
    let mut depth = 0_usize;
    let mut rest = json;
    loop {
        match *rest.first()? {
            b'"' => rest = string(rest)?.1,
            b'{' | b'[' => (depth, rest) = (depth + 1, &rest[1..]),
            b'}' | b']' => (depth, rest) = (depth.checked_sub(1)?, &rest[1..]),
            _ if depth == 0 => {
                let ends = |byte: &u8| matches!(byte, b',' | b'}' | b']') || byte.is_ascii_whitespace();
                let end = rest.iter().position(ends)?;
                return Some(&rest[end..]);
            }
            _ => {
                rest =
                    &rest[rest.iter().position(|byte| matches!(byte, b'"' | b'{' | b'[' | b'}' | b']'))?..]
            }
        }
        if depth == 0 {
            return Some(rest);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_field_is_found_where_it_is_and_only_there() {
        let json = br#" {"a": {"id":"inner"}, "messages":[{"content":"\"id\":\"no\" }]\\"}], "n":1, "id" : "yes", "z"#;
        assert_eq!(text(json, "id"), Some(&b"yes"[..]));
        assert_eq!(text(value(json, "a").unwrap(), "id"), Some(&b"inner"[..]));
        assert_eq!((text(json, "n"), text(json, "z"), text(b"[1]", "id")), (None, None, None));
        assert_eq!(text(br#"{"id":"half"#, "id"), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = text(&bytes, "id");
        }

        #[test]
        fn json_made_of_brackets_and_quotes_is_survived(json in r#"\{("[a\\"]{0,4}"|[\[\]{}:, 1]){0,20}"#) {
            let _ = text(json.as_bytes(), "a");
        }

        #[test]
        fn it_agrees_with_a_whole_parser(
            keys in prop::collection::vec("[a-c]{1,2}", 1..6),
            texts in prop::collection::vec("[ -~]{0,12}", 6),
            wanted in "[a-c]{1,2}",
        ) {
            let mut json = String::from("{");
            for (at, key) in keys.iter().enumerate() {
                let comma = if at == 0 { "" } else { "," };
                let value = match at % 3 {
                    0 => serde_json::json!(texts[at]),
                    1 => serde_json::json!({ "a": [texts[at], 1.5, null], "b": texts[at] }),
                    _ => serde_json::json!([texts[at], {"c": true}]),
                };
                json.push_str(&format!("{comma}{key:?}:{value}"));
            }
            json.push('}');
            let at = keys.iter().position(|key| *key == wanted);
            let found = value(json.as_bytes(), &wanted);
            prop_assert_eq!(found.is_some(), at.is_some());
            if let Some(at) = at.filter(|at| at % 3 == 0) {
                let expected = serde_json::json!(texts[at]).to_string();
                prop_assert_eq!(text(json.as_bytes(), &wanted).unwrap(), &expected.as_bytes()[1..expected.len() - 1]);
            }
        }
    }
}
